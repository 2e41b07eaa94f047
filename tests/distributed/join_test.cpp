// Ranks with different numbers of batches train in join(), and losses are weighted by their items.
#include "tapestry/tapestry.h"
#include "tests/distributed/models.h"
#include "tests/support/catch.h"
#include "tests/support/distributed.h"

using namespace tapestry;
using namespace tapestry::distributed;
using namespace tapestry::test;

namespace {

using distributed_test::Group, distributed_test::on_ranks, distributed_test::require;

constexpr int kRanks = 3;

// Batch norm has buffers that are broadcast in forward. `rare` is used by rank 2 only.
struct Net : nn::Module {
  nn::Linear& first = add<nn::Linear>("first", {.in_features = 4, .out_features = 5});
  nn::BatchNorm1d& bn = add<nn::BatchNorm1d>("bn", {.num_features = 5});
  nn::Linear& rare = add<nn::Linear>("rare", {.in_features = 5, .out_features = 5});
  nn::Linear& last = add<nn::Linear>("last", {.in_features = 5, .out_features = 3});
  Tensor forward(const Tensor& x, bool use_rare) {
    Tensor h = bn(first(x)).tanh();
    if (use_rare) h = h + rare(h);
    return last(h);
  }
  Net() {
    to(DType::f64);
    fill_by_formula(*this);
  }
};

Tensor batch_of(int step, int rank) {
  const Tensor x = empty({3, 4}, DType::f64);
  for (int i = 0; i < 12; ++i)
    x.data<double>()[i] = std::sin(0.37 * (i + 1) * (1 + step * kRanks + rank)) + rank;
  return x;
}

struct Variant {
  std::vector<int> batches;  // of each rank in each epoch
  bool static_graph = false, clip = false, schedule = false;
  bool by_initial_size = true;
  int passes = 1;  // averaged passes per step
};

std::unique_ptr<optim::Optimizer> make(nn::Module& net, const Group& group, int zero_stage) {
  const optim::SGDOptions options{.lr = 0.05, .momentum = 0.9};
  if (zero_stage == 0) return std::make_unique<optim::SGD>(net.parameters(), options);
  return std::make_unique<ZeroRedundancyOptimizer<optim::SGD>>(
      net.parameters(), ZeroOptions{.process_group = group, .stage = zero_stage, .bucket_cap_mb = 1e-4},
      options);
}

StateDictCopy train(const Group& group, const Variant& v, int zero_stage) {
  Net net;
  DistributedDataParallel ddp(
      net, {.process_group = group, .bucket_cap_mb = 1e-4, .static_graph = v.static_graph});
  const auto optimizer = make(net, group, zero_stage);
  std::vector<Joinable*> joinables{&ddp};
  if (auto* const zero = dynamic_cast<ZeroBase*>(optimizer.get())) joinables.push_back(zero);
  const int rank = group->rank();
  for (int epoch = 0; epoch < 2; ++epoch) {
    join(joinables,
         [&] {
           for (int step = 0; step < v.batches[static_cast<std::size_t>(rank)]; ++step) {
             optimizer->zero_grad();
             for (int pass = 0; pass < v.passes; ++pass)
               ddp(batch_of(20 * epoch + 2 * step + pass, rank), rank == 2).square().mean().backward();
             if (v.clip) nn::clip_grad_norm_(net.parameters(), 0.05);
             if (v.schedule) optimizer->set_lr(0.05 / (step + 1));
             optimizer->step();
           }
         },
         {.divide_by_initial_world_size = v.by_initial_size});
    if (v.schedule) optimizer->set_lr(0.04);
  }
  check_ranks(group, net);
  // The next epoch is an ordinary one: the ranks are equal, and the optimizers too.
  for (int step = 0; step < 2; ++step) {
    optimizer->zero_grad();
    ddp(batch_of(50 + step, rank), rank == 2).square().mean().backward();
    optimizer->step();
  }
  check_ranks(group, net);
  return copy_state(net);
}

// The same training in one process, which sums the gradients of the ranks that have a batch. Returns the
// state of each rank: their buffers differ after the last step.
std::vector<StateDictCopy> reference(const Variant& v) {
  Net net;
  optim::SGD optimizer(net.parameters(), {.lr = 0.05, .momentum = 0.9});
  using Buffers = std::vector<Tensor>;
  const auto get = [&] {
    Buffers copy;
    for (const nn::Buffer& b : net.buffers()) copy.push_back(b->clone());
    return copy;
  };
  const auto put = [&](const Buffers& from) {
    for (std::size_t i = 0; i < from.size(); ++i) net.buffers()[i]->copy_(from[i]);
  };
  std::vector<Buffers> buffers(kRanks, get());  // of each rank
  int lead = 0;
  const auto pass_of = [&](const std::vector<int>& ranks, int number, bool joins) {
    const double divisor = v.by_initial_size || !joins ? kRanks : static_cast<double>(ranks.size());
    lead = ranks[0];
    const Buffers first = buffers[static_cast<std::size_t>(lead)];
    std::fill(buffers.begin(), buffers.end(), first);
    for (const int rank : ranks) {
      put(first);
      (net.forward(batch_of(number, rank), rank == 2).square().mean() / divisor).backward();
      buffers[static_cast<std::size_t>(rank)] = get();
    }
  };
  for (int epoch = 0; epoch < 2; ++epoch) {
    for (int step = 0; step < *std::max_element(v.batches.begin(), v.batches.end()); ++step) {
      optimizer.zero_grad();
      std::vector<int> ranks;
      for (int r = 0; r < kRanks; ++r)
        if (step < v.batches[static_cast<std::size_t>(r)]) ranks.push_back(r);
      for (int pass = 0; pass < v.passes; ++pass) pass_of(ranks, 20 * epoch + 2 * step + pass, true);
      if (v.clip) nn::clip_grad_norm_(net.parameters(), 0.05);
      if (v.schedule) optimizer.set_lr(0.05 / (step + 1));
      optimizer.step();
    }
    const Buffers last = buffers[static_cast<std::size_t>(lead)];
    std::fill(buffers.begin(), buffers.end(), last);
    if (v.schedule) optimizer.set_lr(0.04);
  }
  for (int step = 0; step < 2; ++step) {
    optimizer.zero_grad();
    pass_of({0, 1, 2}, 50 + step, false);
    optimizer.step();
  }
  std::vector<StateDictCopy> states;
  for (const Buffers& own : buffers) {
    put(own);
    states.push_back(copy_state(net));
  }
  return states;
}

std::string error_of(const std::function<void()>& fn) {
  try {
    fn();
  } catch (const Error& e) {
    return e.what();
  }
  return "no error";
}

}  // namespace

TEST_CASE("ranks with different numbers of batches train in join() as one process does") {
  const std::vector<std::pair<const char*, Variant>> variants = {
      {"rank 0 ends first", {.batches = {1, 3, 4}}},
      {"rank 2 ends first", {.batches = {4, 3, 1}}},
      {"a rank without batches", {.batches = {2, 0, 3}}},
      {"equal numbers", {.batches = {2, 2, 2}}},
      {"divided by the ranks that have batches", {.batches = {1, 4, 2}, .by_initial_size = false}},
      {"static graph", {.batches = {1, 2, 4}, .static_graph = true}},
      {"clipping and a schedule", {.batches = {3, 1, 4}, .clip = true, .schedule = true}},
      {"two averaged passes per step", {.batches = {1, 2, 3}, .passes = 2}}};
  for (const auto& [what, v] : variants)
    for (const int stage : {0, 1, 2}) {
      if (stage == 2 && v.clip) continue;  // refused
      INFO(what << ", stage " << stage);
      const auto expected = reference(v);
      const auto got = on_ranks<StateDictCopy>(
          kRanks, [&, &variant = v](const Group& group) { return train(group, variant, stage); });
      for (std::size_t r = 0; r < kRanks; ++r) CHECK(distance(got[r], expected[r]) < 1e-12);
    }
}

TEST_CASE("join() refuses by name what it cannot keep in step") {
  const auto errors = on_ranks<std::vector<std::string>>(2, [](const Group& group) {
    std::vector<std::string> texts;
    {
      nn::Linear net({.in_features = 2, .out_features = 2});
      DistributedDataParallel ddp(net, {.process_group = group});
      texts.push_back(error_of([&] { join({}, [] {}); }));
      texts.push_back(error_of([&] { ddp.join(nullptr); }));
      {
        const ZeroRedundancyOptimizer<optim::SGD> zero(net.parameters(), {.process_group = group});
        texts.push_back(error_of([&] { ddp.join([] {}); }));
      }
      texts.push_back(error_of([&] {
        ddp.join(
            [&] {
              for (int i = 0; i <= group->rank(); ++i) ddp(ones({1, 2})).sum().backward();
            },
            {.throw_on_early_termination = true});
      }));
    }
    {
      nn::BatchNorm1d net({.num_features = 2});
      convert_sync_batchnorm(net, group);
      DistributedDataParallel ddp(net, {.process_group = group});
      texts.push_back(error_of([&] { ddp.join([] {}); }));
    }
    return texts;
  });
  for (const auto& texts : errors) {
    CHECK_THAT(texts[0], ContainsSubstring("[join] the list is empty"));
    CHECK_THAT(texts[1], ContainsSubstring("[join] the function is empty"));
    CHECK_THAT(texts[2], ContainsSubstring("pass it in the list too"));
    CHECK_THAT(texts[3], ContainsSubstring("[join] these ranks have no more batches, and others do: 0;"));
    CHECK_THAT(texts[4], ContainsSubstring("[join] the model is a SyncBatchNorm"));
  }
}

TEST_CASE("mean_over_ranks() gives the gradients of the mean over the targets of all ranks, also in join()") {
  // Rank 0 has 5 targets in its first batch and none in its second; rank 1 has 1 and then no batch.
  const auto data = [](int rank, int step) {
    const Tensor x = batch_of(step, rank).narrow(1, 0, 2).repeat({2, 1});
    const Tensor y = full({6}, -100, DType::i64);
    const int count = rank == 1 ? 1 : step == 0 ? 5 : 0;
    for (int i = 0; i < count; ++i) y.data<std::int64_t>()[i] = (i + rank) % 3;
    return std::pair(x, y);
  };
  const auto sum_of = [](const Tensor& scores, const Tensor& y) {
    return cross_entropy(scores, y, {.ignore_index = -100, .reduction = Reduction::sum});
  };
  nn::Linear alone({.in_features = 2, .out_features = 3});
  alone.to(DType::f64);
  fill_by_formula(alone);
  const Tensor total =
      sum_of(alone(data(0, 0).first), data(0, 0).second) + sum_of(alone(data(1, 0).first), data(1, 0).second);
  (total / 6.0).backward();
  const auto all = on_ranks<int>(2, [&](const Group& group) {
    nn::Linear net({.in_features = 2, .out_features = 3});
    net.to(DType::f64);
    fill_by_formula(net);
    DistributedDataParallel ddp(net, {.process_group = group});
    ddp.join([&] {
      for (int step = 0; step < 2 - group->rank(); ++step) {
        const auto [x, y] = data(group->rank(), step);
        const std::int64_t count = count_targets(y);
        require(count == (group->rank() == 1 ? 1 : step == 0 ? 5 : 0), "count_targets");
        net.zero_grad();
        Tensor loss = ddp.mean_over_ranks(sum_of(ddp(x), y), count);
        loss.backward();
        const Tensor difference =
            (net.weight.grad() - (step == 0 ? alone.weight.grad() : zeros_like(alone.weight.grad()))).abs();
        require(difference.max().item() < 1e-14, "gradient of step ", step);
        if (step > 0) continue;
        group->all_reduce(loss.detach(), ReduceOp::mean);
        require(std::abs(loss.item() - total.item() / 6) < 1e-14, "loss");
      }
    });
    require(error_of([&] { mean_over_ranks(*group, ones({}), -1); }).find("count is -1") != std::string::npos,
            "count");
    return 0;
  });
  CHECK(all.size() == 2);
}
