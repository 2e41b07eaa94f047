// Mixtures of experts whose batch several devices or ranks divide.
#include "tapestry/nn/layers/moe.h"
#include "tests/data_parallel/models.h"
#include "tests/support/catch.h"
#include "tests/support/distributed.h"

using namespace tapestry;
using namespace tapestry::distributed;
using namespace tapestry::test;

namespace {

constexpr std::int64_t kExperts = 4;

nn::MixtureOfExperts::Options options() {
  return {.embed_dim = 6,
          .hidden_dim = 5,
          .num_experts = kExperts,
          .top_k = 1,
          .norm_topk_prob = false,
          .balance = nn::RouterBalance::bias,
          .bias_update_rate = 0.05};
}

struct Trained : TrainResult {
  std::vector<std::int64_t> counts;  // of all steps
};

void count(Trained& result, nn::MixtureOfExperts& moe) {
  for (const std::int64_t n : moe.tokens_per_expert().to_vector<std::int64_t>()) result.counts.push_back(n);
}

// 8 steps on 7 tokens, which two devices divide unevenly.
Trained train(std::optional<DataParallelMode> mode) {
  nn::MixtureOfExperts moe(options());
  moe.to(DType::f64);
  fill_by_formula(moe);
  std::optional<DataParallel<nn::MixtureOfExperts>> dp;
  if (mode)
    dp.emplace(moe, std::vector<Device>{Device("cpu:0"), Device("cpu:1")},
               DataParallelOptions{.mode = *mode});
  optim::SGD optimizer(moe.parameters(), {.lr = 0.5});
  const auto loss_of = [&](const Tensor& x, const Tensor& y) { return mse_loss(moe(x), y); };
  Trained result;
  for (int step = 0; step < 8; ++step) {
    const Tensor x = wave({7, 6}, step) * 3, y = wave({7, 6}, 2 * step);
    optimizer.zero_grad();
    const Tensor loss = dp ? dp->loss(std::make_tuple(x, y), loss_of) : loss_of(x, y);
    loss.backward();
    count(result, moe);
    moe.update_router_bias();
    optimizer.step();
    result.losses.push_back(loss.item());
  }
  result.weights = copy_state(moe);
  return result;
}

// Each rank has the tokens of one expert, which the router finds by the largest feature.
Tensor tokens_for(std::int64_t expert, int step) {
  const Tensor x = wave({3, 6}, step + static_cast<double>(expert)) * 0.3;
  x.select(1, expert).fill_(2);
  return x;
}

// The parameters are sharded, so that the counts of this rank are not all.
bool refuses_own_counts(nn::MixtureOfExperts& moe) {
  try {
    moe.update_router_bias();
  } catch (const ValueError& e) {
    return std::string(e.what()).find("sum tokens_per_expert() over the ranks") != std::string::npos;
  }
  return false;
}

}  // namespace

TEST_CASE("a mixture of experts under DataParallel trains and counts as on one device") {
  const Trained expected = train({});
  for (const DataParallelMode mode : {DataParallelMode::replicated, DataParallelMode::master}) {
    INFO((mode == DataParallelMode::master ? "master" : "replicated"));
    const Trained got = train(mode);
    CHECK(got.counts == expected.counts);
    CHECK(distance_of_losses(got, expected) < 1e-10);
    CHECK(distance(got.weights, expected.weights) < 1e-10);
  }
}

TEST_CASE("ranks whose tokens go to different experts post the same collectives and get the mean gradients") {
  const auto train_ranks = [](const distributed_test::Group& group, bool shard) {
    nn::MixtureOfExperts moe(options());
    moe.to(DType::f64);
    fill_by_formula(moe);
    {
      const NoGradGuard no_grad;
      moe.gate.weight->zero_();
      for (std::int64_t e = 0; e < kExperts; ++e) moe.gate.weight[e].narrow(0, e, 1).fill_(3);
    }
    std::optional<DistributedDataParallel<nn::MixtureOfExperts>> ddp;
    std::optional<FullyShard> sharded;
    if (group && shard) sharded.emplace(fully_shard(moe, {.group = group}));
    if (group && !shard) ddp.emplace(moe, DdpOptions{.process_group = group});
    optim::SGD optimizer(moe.parameters(), {.lr = 0.1});
    for (int step = 0; step < 3; ++step) {
      optimizer.zero_grad();
      if (group) {
        const Tensor x = tokens_for(group->rank() == 0 ? 1 : 3, step);
        (ddp ? (*ddp)(x) : moe(x)).square().mean().backward();
        if (shard)
          distributed_test::require(refuses_own_counts(moe), "update_router_bias() took one rank's counts");
        const Tensor counts = moe.tokens_per_expert();
        group->all_reduce(counts);
        moe.update_router_bias(counts);
      } else {
        moe(cat({tokens_for(1, step), tokens_for(3, step)}, 0)).square().mean().backward();
        moe.update_router_bias();
      }
      optimizer.step();
    }
    if (!sharded) return copy_state(moe);
    const auto whole = sharded->unshard(true);
    return copy_state(moe);
  };
  const StateDictCopy expected = train_ranks(nullptr, false);
  for (const bool shard : {false, true}) {
    INFO((shard ? "fully_shard" : "DistributedDataParallel"));
    const auto got = distributed_test::on_ranks<StateDictCopy>(
        2, [&](const distributed_test::Group& group) { return train_ranks(group, shard); });
    for (const StateDictCopy& state : got) CHECK(distance(state, expected) < 1e-12);
  }
}

TEST_CASE("a sharded Olmoe whose ranks have equal batches trains as on one rank, recomputed or not") {
  const auto train = [](const distributed_test::Group& group, bool recompute) {
    nn::OlmoeConfig c;
    c.vocab_size = 13, c.hidden_size = 8, c.intermediate_size = 5, c.num_hidden_layers = 2;
    c.num_attention_heads = 2, c.num_key_value_heads = 1, c.max_position_embeddings = 8;
    c.num_experts = 4, c.num_experts_per_tok = 2, c.output_router_logits = true, c.router_aux_loss_coef = 0.5;
    nn::Olmoe net(c);
    net.to(DType::f64);
    fill_by_formula(net);
    std::optional<FullyShard> sharded;
    if (group) {
      for (nn::Module* const block : net.model.layers.children()) fully_shard(*block, {.group = group});
      sharded.emplace(fully_shard(net, {.group = group}));
    }
    optim::SGD optimizer(net.parameters(), {.lr = 0.1});
    for (int step = 0; step < 3; ++step) {
      const Tensor words = labels_of(3 * 7, 13, step).reshape({3, 7});
      optimizer.zero_grad();
      net(words.narrow(1, 0, 6), {.targets = words.narrow(1, 1, 6), .checkpoint = recompute}).backward();
      optimizer.step();
    }
    if (!sharded) return copy_state(net);
    const auto whole = sharded->unshard(true);
    return copy_state(net);
  };
  const StateDictCopy expected = train(nullptr, false);
  for (const bool recompute : {false, true}) {
    INFO((recompute ? "recomputed" : "kept"));
    const auto got = distributed_test::on_ranks<StateDictCopy>(
        2, [&](const distributed_test::Group& group) { return train(group, recompute); });
    for (const StateDictCopy& state : got) CHECK(distance(state, expected) < 1e-12);
  }
}
