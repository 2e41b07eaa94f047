// Mixtures whose experts ranks divide, against one process in float64.
#include <array>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "tapestry/autograd/internal/delay.h"
#include "tapestry/distributed/expert/internal/exchange.h"
#include "tapestry/nn/layers/moe.h"
#include "tests/support/catch.h"
#include "tests/tensor_parallel/support.h"

using namespace tensor_test;
using nn::MixtureOfExperts;

namespace {

constexpr std::int64_t kDim = 4;

MixtureOfExperts::Options small(std::int64_t experts) {
  return {.embed_dim = kDim, .hidden_dim = 3, .num_experts = experts, .top_k = 2};
}

// Weights that are large enough that the router prefers some experts. With `all_to`, every token's first
// expert is that one.
void fill(MixtureOfExperts& moe, std::optional<std::int64_t> all_to = {}) {
  moe.to(DType::f64);
  const NoGradGuard no_grad;
  int k = 0;
  for (const auto& [name, p] : moe.named_parameters()) {
    p->copy_(wave(p->sizes(), 0.7 + 0.1 * k, k) * 2);
    ++k;
  }
  if (all_to) moe.gate.weight[*all_to].copy_(full({kDim}, 50.0, DType::f64));
}

// The tokens of a rank. All elements are positive, for fill(all_to).
Tensor tokens_of(int rank, std::int64_t count) { return wave({count, kDim}, 1.3, 2 + rank) + 1.5; }
Tensor loss_of(MixtureOfExperts& moe, const Tensor& x, int rank) {
  return (moe(x) * wave(x.sizes(), 0.9, rank)).sum() + moe.auxiliary_loss();
}

struct Case {
  std::string name;
  MixtureOfExperts::Options options;
  std::vector<std::int64_t> tokens;  // of each rank
  std::optional<std::int64_t> all_to = {};
};

std::vector<Case> cases() {
  MixtureOfExperts::Options capacity = small(4), sigmoid = small(4), one = small(3);
  capacity.capacity_factor = 0.6;
  capacity.balance = nn::RouterBalance::auxiliary_loss, capacity.aux_loss_coef = 0.5;
  sigmoid.score = nn::RouterScore::sigmoid, sigmoid.shared_hidden_dim = 5, sigmoid.z_loss_coef = 0.3;
  sigmoid.norm_topk_prob = false;
  one.top_k = 1;
  return {{"two ranks", small(4), {5, 3}},
          {"uneven experts", small(5), {4, 7, 2}},
          {"a rank without tokens", small(4), {6, 0}},
          {"all tokens to one expert, and others without tokens", one, {3, 4, 2}, 1},
          {"one token of all ranks", small(5), {0, 1, 0}},
          {"no token at all", small(4), {0, 0}},
          {"capacity and an auxiliary loss", capacity, {9, 4}},
          {"sigmoid, a shared expert and a z-loss", sigmoid, {3, 5, 2, 1}}};
}

// What each rank shall have: results and gradients of its tokens, and gradients of the parameters.
struct Expected {
  std::vector<Tensor> y, dx;
  std::vector<Gradients> gradients;
};

Expected expected_of(const Case& c) {
  MixtureOfExperts moe(c.options);
  fill(moe, c.all_to);
  Expected e;
  Gradients experts;
  for (int r = 0; r < static_cast<int>(c.tokens.size()); ++r) {
    for (const nn::Parameter& p : moe.parameters()) p.tensor().set_grad(zeros_like(p.detach()));
    const Tensor x = tokens_of(r, c.tokens[static_cast<std::size_t>(r)]);
    x.set_requires_grad(true);
    e.y.push_back(moe(x).detach());
    loss_of(moe, x, r).backward();
    e.dx.push_back(x.grad().clone());
    e.gradients.push_back(gradients_of(moe));
    for (const char* const name : {"experts.gate_up_proj", "experts.down_proj"}) {
      Tensor& sum = experts[name];
      sum = sum.defined() ? sum + e.gradients.back().at(name) : e.gradients.back().at(name);
    }
  }
  for (Gradients& g : e.gradients)
    for (const auto& [name, sum] : experts) g[name] = sum;
  return e;
}

std::string error_of(const std::function<void()>& fn) {
  try {
    fn();
  } catch (const ValueError& e) {
    return e.what();
  }
  return {};
}

}  // namespace

TEST_CASE("divided experts compute results and gradients of one process") {
  for (const Case& c : cases())
    for (const bool recomputes : {false, true}) {
      INFO(c.name << (recomputes ? ", recomputed" : ""));
      const Expected e = expected_of(c);
      on_ranks<int>(static_cast<int>(c.tokens.size()), [&](const Group& world) {
        const int rank = world->rank();
        const auto at = static_cast<std::size_t>(rank);
        const Mesh mesh(world, {{"expert", -1}});
        MixtureOfExperts moe(c.options);
        fill(moe, c.all_to);
        const ExpertParallel divided = expert_parallel(moe, mesh["expert"]);
        for (const nn::Parameter& p : moe.parameters()) p.tensor().set_grad(zeros_like(p.detach()));
        const Tensor x = tokens_of(rank, c.tokens[at]);
        x.set_requires_grad(true);
        require(tensor_test::distance(moe(x), e.y[at]) < 1e-12, c.name, ": results");
        if (c.all_to) {  // rank 1 returns the rows that the others send; backward sends as much
          constexpr std::array<std::int64_t, 3> kRows{3, 3 + 2, 2};
          require(divided.bytes_sent() == kRows[at] * kDim * 8 * 2, c.name, ": bytes");
        }
        const Tensor loss = recomputes ? checkpoint([&](const Tensor& t) { return loss_of(moe, t, rank); }, x)
                                       : loss_of(moe, x, rank);
        loss.backward();
        require(tensor_test::distance(x.grad(), e.dx[at]) < 1e-11, c.name, ": gradient of the tokens");
        require_gradients(moe, e.gradients[at], c.name);
        if (c.name == "no token at all") require(divided.bytes_sent() == 0, c.name, ": bytes");
        return 0;
      });
    }
}

TEST_CASE("gradients of gradients pass through the exchange") {
  const std::vector<std::int64_t> tokens{3, 4};
  const auto second = [&](MixtureOfExperts& moe, int rank) {
    const Tensor x = tokens_of(rank, tokens[static_cast<std::size_t>(rank)]);
    x.set_requires_grad(true);
    const Tensor dx =
        autograd::grad({loss_of(moe, x, rank)}, {x}, autograd::GradOptions{.create_graph = true})[0];
    dx.square().sum().backward();
    return x.grad().clone();
  };
  MixtureOfExperts one(small(4));
  fill(one);
  std::vector<Tensor> expected{second(one, 0), second(one, 1)};
  const Gradients sums = gradients_of(one);
  on_ranks<int>(2, [&](const Group& world) {
    const Mesh mesh(world, {{"expert", 2}});
    MixtureOfExperts moe(small(4));
    fill(moe);
    expert_parallel(moe, mesh["expert"]);
    const Tensor xx = second(moe, world->rank());
    require(tensor_test::distance(xx, expected[static_cast<std::size_t>(world->rank())]) < 1e-10,
            "of tokens");
    for (const nn::Parameter& p : {moe.experts.gate_up_proj, moe.experts.down_proj}) {
      const char* const name =
          p.is_same(moe.experts.down_proj) ? "experts.down_proj" : "experts.gate_up_proj";
      const Tensor own = p.layout()->region(0).of(sums.at(name));
      require(tensor_test::distance(p.grad(), own) < 1e-10, name);
    }
    return 0;
  });
}

TEST_CASE("received rows are ordered by expert, and empty groups take no place") {
  // From rank 0: 2 rows for expert 0, none for 1, 1 for 2. From rank 1: 1, 3, 0.
  ExpertCounts counts;
  counts.experts = 3;
  counts.received = {3, 4};
  counts.by_source = {2, 0, 1, 1, 3, 0};
  CHECK(order_by_expert(counts) == std::vector<std::int64_t>{0, 1, 3, 4, 5, 6, 2});
  CHECK(counts.of_expert(0) == 3);
  CHECK(counts.of_expert(1) == 3);
  CHECK(counts.of_expert(2) == 1);
}

TEST_CASE("the numbers of a full parameter are kept by parts, also from the meta device") {
  manual_seed(3);
  const MixtureOfExperts whole(small(5));
  std::mutex mutex;  // ranks are threads, and share the generator
  on_ranks<int>(3, [&](const Group& world) {
    std::unique_ptr<MixtureOfExperts> moe;
    {
      const DeviceGuard meta(kMeta);
      moe = std::make_unique<MixtureOfExperts>(small(5));
    }
    const Mesh mesh(world, {{"expert", 3}});
    if (world->rank() == 0) {
      // The first rank's values are those of all.
      const std::lock_guard lock(mutex);
      manual_seed(3);
      moe = std::make_unique<MixtureOfExperts>(small(5));
    }
    expert_parallel(*moe, mesh["expert"], {.device = kCPU});
    const auto named = whole.named_parameters();
    for (const auto& [name, p] : moe->named_parameters()) {
      const auto same =
          std::find_if(named.begin(), named.end(), [&](const auto& n) { return n.first == name; });
      const Tensor own = p.layout()->region(0).of(same->second);
      require(p.sizes() == own.sizes() && tensor_test::distance(p.to(DType::f64), own.to(DType::f64)) == 0,
              name);
    }
    require(moe->experts.gate_up_proj->size(0) == (world->rank() == 2 ? 1 : 2), "parts of 5 experts");
    return 0;
  });
}

TEST_CASE("an axis of one rank gives a model on the meta device its memory and initial values") {
  struct Block : nn::Module {
    nn::MixtureOfExperts& moe = add<MixtureOfExperts>("moe", biased());
    nn::Linear& last = add<nn::Linear>("last", {.in_features = kDim, .out_features = 2});
    static MixtureOfExperts::Options biased() {
      MixtureOfExperts::Options o = small(3);
      o.balance = nn::RouterBalance::bias;  // which is a buffer
      return o;
    }
  };
  manual_seed(4);
  const Block whole;
  const Mesh mesh(fake_process_group(0, 1), {{"one", 1}});
  for (const bool experts : {true, false}) {
    INFO("experts " << experts);
    manual_seed(4);
    std::unique_ptr<Block> net;
    {
      const DeviceGuard meta(kMeta);
      net = std::make_unique<Block>();
    }
    if (experts) expert_parallel(*net, mesh["one"], {.device = kCPU});
    else tensor_parallel(*net, mesh["one"], {{{"last", TensorStyle::gathered_column}}}, {.device = kCPU});
    CHECK_FALSE(nn::has_meta_tensors(*net));
    const nn::StateDict expected = whole.state_dict(), got = net->state_dict();
    REQUIRE(got.size() == expected.size());
    for (std::size_t i = 0; i < got.size(); ++i) {
      INFO(got[i].first);
      CHECK(got[i].first == expected[i].first);
      CHECK(equal(got[i].second, expected[i].second));
    }
  }
}

TEST_CASE("a gradient from before the division is divided as its parameter") {
  const Mesh mesh(fake_process_group(1, 2), {{"expert", 2}});
  MixtureOfExperts moe(small(5));
  fill(moe);
  int k = 0;
  for (const nn::Parameter& p : moe.parameters()) p.tensor().set_grad(wave(p.sizes(), 0.3, ++k));
  const Gradients before = gradients_of(moe);
  expert_parallel(moe, mesh["expert"]);
  CHECK(moe.experts.gate_up_proj.grad().size(0) == 2);  // rank 1 has the last two experts
  require_gradients(moe, before, "a gradient");
}

TEST_CASE("the bias of routers moves by the tokens of all ranks") {
  MixtureOfExperts::Options options = small(4);
  options.balance = nn::RouterBalance::bias, options.bias_update_rate = 0.25;
  MixtureOfExperts one(options);
  fill(one);
  one(cat({tokens_of(0, 5), tokens_of(1, 2)}, 0));
  one.update_router_bias();
  const std::vector<double> expected = one.gate.expert_bias->to_vector<double>();
  on_ranks<int>(2, [&](const Group& world) {
    const Mesh mesh(world, {{"expert", 2}});
    MixtureOfExperts moe(options);
    fill(moe);
    expert_parallel(moe, mesh["expert"]);
    moe(tokens_of(world->rank(), world->rank() == 0 ? 5 : 2));
    update_router_bias(moe, *world);
    require(moe.gate.expert_bias->to_vector<double>() == expected, "the bias");
    require(moe.tokens_per_expert().sum().item() == 0, "counts begin anew");
    return 0;
  });
}

TEST_CASE("what cannot be divided is an error of all ranks") {
  on_ranks<int>(3, [&](const Group& world) {
    const Mesh mesh(world, {{"expert", 3}});
    const auto refuses = [&](nn::Module& module, const std::string& text) {
      const std::string error = error_of([&] { expert_parallel(module, mesh["expert"]); });
      require(error.find(text) != std::string::npos, "\"", text, "\" is not in \"", error, "\"");
    };
    nn::Linear linear({.in_features = 2, .out_features = 2});
    refuses(linear, "has no MixtureOfExperts");
    MixtureOfExperts four(small(4)), five(small(5));
    refuses(four, "has 4 experts, of which the last of 3 ranks would have none");
    require(!four.experts.gate_up_proj.layout(), "nothing has changed");
    expert_parallel(five, mesh["expert"]);
    refuses(five, "is divided already");
    MixtureOfExperts other(small(world->rank() == 1 ? 5 : 6));
    refuses(other, "mixture");
    // DistributedDataParallel would average different experts.
    const std::string error = error_of([&] {
      DistributedDataParallel<MixtureOfExperts> ddp(five,
                                                    DdpOptions{.process_group = mesh["expert"].group()});
    });
    require(error.find("divided among ranks") != std::string::npos, error);
    return 0;
  });
}

TEST_CASE("a program without a strategy adds gradients over two groups, and one group is an error") {
  const std::vector<std::int64_t> tokens{3, 2, 0, 4};
  Case c{"four ranks", small(4), tokens};
  Gradients sums;
  for (const Gradients& g : expected_of(c).gradients)
    for (const auto& [name, t] : g)
      if (name.find("experts.") == std::string::npos) sums[name] = sums[name].defined() ? sums[name] + t : t;
      else sums[name] = t;  // over all ranks already
  on_ranks<int>(4, [&](const Group& world) {
    const Mesh mesh(world, {{"replicate", 2}, {"expert", 2}});
    MixtureOfExperts moe(c.options);
    fill(moe);
    expert_parallel(moe, mesh["expert"]);
    const std::vector<nn::Parameter> experts = moe.experts.parameters();
    const std::vector<nn::Parameter> others = moe.gate.parameters();
    const std::string shared = error_of([&] {
      fully_shard(moe, {.group = mesh["replicate"].group(), .replicate_group = mesh["expert"].group()});
    });
    require(shared.find("experts.gate_up_proj has [") != std::string::npos, shared);
    DistributedDataParallel<MixtureOfExperts> all(
        moe, DdpOptions{.process_group = world, .reduce = ReduceOp::sum, .ignored_parameters = experts});
    DistributedDataParallel<MixtureOfExperts> copies(moe,
                                                     DdpOptions{.process_group = mesh["replicate"].group(),
                                                                .reduce = ReduceOp::sum,
                                                                .ignored_parameters = others,
                                                                .paired_with = &all});
    const Tensor x = tokens_of(world->rank(), tokens[static_cast<std::size_t>(world->rank())]);
    (all(x) * wave(x.sizes(), 0.9, world->rank())).sum().backward();
    require_gradients(moe, sums, "sums");
    std::string error = error_of([&] { all.join([] {}); });
    require(error.find("two DistributedDataParallel that pass together") != std::string::npos, error);
    nn::Linear linear({.in_features = 2, .out_features = 2});
    error = error_of([&] {
      DistributedDataParallel<nn::Linear> third(linear,
                                                DdpOptions{.process_group = world, .paired_with = &all});
    });
    require(error.find("is in a pair already") != std::string::npos, error);
    return 0;
  });
}

TEST_CASE("two groups' buckets are posted in one order, whichever gradients come first, or come at all") {
  // Layers that all ranks add, and layers that pairs of ranks add, with several buckets each.
  struct Net : nn::Module {
    nn::ModuleList &ours = add<nn::ModuleList>("ours"), &pairs = add<nn::ModuleList>("pairs");
    Net() {
      for (int i = 0; i < 5; ++i)
        (void)ours.append<nn::Linear>({.in_features = 4, .out_features = 4}),
            (void)pairs.append<nn::Linear>({.in_features = 4, .out_features = 4});
      to(DType::f64);
      int k = 0;
      const NoGradGuard no_grad;
      for (const nn::Parameter& p : parameters()) p->copy_(wave(p->sizes(), 0.4, k++));
    }
    // The layers that a rank uses: all of them, or those of one list, in one order or the other.
    Tensor loss(const Tensor& x, int kind) {
      Tensor y = x;
      for (int i = 0; i < 5; ++i) {
        const auto use = [&](nn::ModuleList& list, int at) { y = tanh(list.get<nn::Linear>(at)(y)); };
        if (kind == 1) use(ours, 4 - i);
        if (kind != 2) use(pairs, i);
        if (kind == 0) use(ours, i);
      }
      if (kind == 2)
        for (int i = 0; i < 5; i += 2) y = tanh(ours.get<nn::Linear>(i)(y));
      return y.square().sum();
    }
  };
  const auto kind_of = [](int rank, int pass) { return (rank % 2 + pass) % 3; };  // differs in each pair
  std::vector<Gradients> expected;  // of each pass, of the first pair and of the second
  for (int pass = 0; pass < 4; ++pass)
    for (int pair = 0; pair < 2; ++pair) {
      Net net;
      for (const nn::Parameter& p : net.parameters()) p.tensor().set_grad(zeros_like(p.detach()));
      Gradients all;
      for (int rank = 0; rank < 4; ++rank) {
        net.loss(tokens_of(rank, 3), kind_of(rank, pass)).backward();
        if (rank % 2 == 0) continue;
        for (const auto& [name, g] : gradients_of(net))
          if (name.starts_with("ours") || rank / 2 == pair)
            all[name] = all.contains(name) ? all[name] + g : g;
        for (const nn::Parameter& p : net.parameters()) p.grad().zero_();
      }
      expected.push_back(std::move(all));
    }
  const auto check_passes = [&](const Group& world, bool zero) {
    const Mesh mesh(world, {{"pair", 2}, {"member", 2}});
    const Group member = mesh["member"].group();
    Net net;
    const DdpOptions options{.bucket_cap_mb = 2e-4, .first_bucket_mb = 1e-4, .reduce = ReduceOp::sum};
    DdpOptions of_all = options, of_pair = options;
    of_all.process_group = world, of_all.ignored_parameters = net.pairs.parameters();
    DistributedDataParallel<Net> all(net, of_all);
    of_pair.process_group = member, of_pair.ignored_parameters = net.ours.parameters();
    of_pair.paired_with = &all;
    DistributedDataParallel<Net> pair(net, of_pair);
    require(all.buckets().size() > 2 && pair.buckets().size() > 2, "several buckets");
    Gradients initial;
    for (const auto& [name, p] : net.named_parameters()) initial[name] = p->detach().clone();
    std::optional<ZeroRedundancyOptimizer<optim::SGD>> optimizer;
    if (zero)
      optimizer.emplace(
          net.parameters(),
          ZeroOptions{
              .process_group = world, .stage = 2, .parts = net.pairs.parameters(), .parts_group = member},
          optim::SGDOptions{.lr = 1});
    for (int pass = 0; pass < 4; ++pass) {
      const Gradients& sums = expected[static_cast<std::size_t>(2 * pass + world->rank() / 2)];
      const std::string what = concat({"pass ", pass, zero ? ", ZeRO" : ""});
      if (optimizer) optimizer->zero_grad();
      else
        for (const nn::Parameter& p : net.parameters()) p.tensor().set_grad({});
      net.loss(tokens_of(world->rank(), 3), kind_of(world->rank(), pass)).backward();
      if (optimizer) {  // the gradients are divided, and a step with the rate 1 subtracts them
        optimizer->step();
        const NoGradGuard no_grad;
        for (const auto& [name, p] : net.named_parameters()) {
          require(tensor_test::distance(initial.at(name) - p.detach(), sums.at(name)) < 1e-10, what, ": ",
                  name);
          p->copy_(initial.at(name));
        }
        continue;
      }
      for (const nn::Parameter& p : net.parameters())
        if (!p.grad().defined()) p.tensor().set_grad(zeros_like(p.detach()));
      require_gradients(net, sums, what);
    }
    return 0;
  };
  for (const bool zero : {false, true})
    on_ranks<int>(4, [&](const Group& world) { return check_passes(world, zero); });
}

TEST_CASE("the shared expert computes while the tokens travel, and its backward while their gradients do") {
  MixtureOfExperts::Options options = small(4);
  options.shared_hidden_dim = 5;
  on_ranks<int>(2, [&](const Group& world) {
    const Mesh mesh(world, {{"expert", 2}});
    const Group group = mesh["expert"].group();
    MixtureOfExperts moe(options);
    fill(moe);
    expert_parallel(moe, mesh["expert"]);
    const auto posted = [&] {
      int rows = 0;
      for (const CollectiveRecord& r : group->recorder().records())
        rows += std::string(r.name) == "expert_parallel: rows";
      return rows;
    };
    int at_shared = -1, at_gradient = -1;
    moe.shared_expert->register_forward_pre_hook(
        [&](nn::Module&, std::vector<Tensor>&) { at_shared = posted(); });
    moe.shared_expert->down_proj.weight->register_post_accumulate_grad_hook(
        [&](const Tensor&) { at_gradient = posted(); });
    moe(tokens_of(world->rank(), 5).set_requires_grad(true)).sum().backward();
    require(at_shared == 1, "the tokens are on their way: ", at_shared);
    require(at_gradient == 4 && posted() == 4, "so are their gradients: ", at_gradient, " of ", posted());
    return 0;
  });
}

TEST_CASE("delayed weight gradients are computed before backward waits for rows") {
  on_ranks<int>(2, [&](const Group& world) {
    const PlacementCheck off(false);
    const Mesh mesh(world, {{"expert", 2}});
    const Axis axis = mesh["expert"];
    const ExpertCounts counts = exchange_counts(axis, ints({1, 2}, {2}));
    const Tensor x = wave({3, kDim}, 0.7).set_requires_grad(true);
    std::vector<Tensor> weights;
    Tensor h = exchange_rows(axis, x, counts, [](const Tensor& rows) { return rows; });
    for (int i = 0; i < 2; ++i) {
      weights.push_back(wave({kDim, kDim}, 0.3 + i).set_requires_grad(true));
      h = linear(h, weights.back());
      autograd::delay_leaf_gradients(h);
    }
    // What has happened: the collectives up to then, and the tensor whose gradient is there.
    const std::size_t forward = axis.group()->recorder().records().size();
    std::vector<std::string> order;
    const auto note = [&](const Tensor& t, const char* name) {
      t.register_hook([&, name](const Tensor&) {
        order.push_back(concat({axis.group()->recorder().records().size() - forward, " ", name}));
        return Tensor();
      });
    };
    note(weights[0], "first weight"), note(weights[1], "second weight"), note(x, "x");
    h.sum().backward();
    // Each wait computes half of what is new. The second one comes behind the other exchange.
    require(order == std::vector<std::string>{"1 second weight", "2 first weight", "2 x"},
            order.empty() ? "" : order[0], " is first");
    return 0;
  });
}

TEST_CASE("the placement check follows tokens through the exchange") {
  const PlacementCheck on;
  const Mesh mesh(fake_process_group(0, 2), {{"expert", 2}});
  const Axis axis = mesh["expert"];
  MixtureOfExperts moe(small(4));
  fill(moe);
  expert_parallel(moe, axis);
  place_parameters(moe, axis, Placement::replicated());
  const auto placed = [&](Placement p) {
    const Tensor x = tokens_of(0, 5);
    x.set_requires_grad(true);
    set_placement(x, axis, p);
    return placement_of(moe(x), axis);
  };
  CHECK(placed(Placement::varying()) == Placement::varying());
  CHECK(placed(Placement::replicated()) == Placement::varying());
  // Experts outside of the exchange would compute a part of the tokens.
  CHECK_THROWS_AS(
      moe.experts.products(zeros({2, kDim}, DType::f64).set_requires_grad(true), ints({1, 1}, {2})),
      PlacementError);
  // A router whose gradient nobody adds.
  place_parameters(moe, axis, Placement::invariant());
  CHECK_THROWS_AS(placed(Placement::varying()), PlacementError);
}

TEST_CASE(
    "a language model with divided experts generates the words of one process, with a cache on each rank") {
  nn::OlmoeConfig config;
  config.vocab_size = 23, config.hidden_size = 12, config.intermediate_size = 6, config.num_hidden_layers = 2;
  config.num_attention_heads = config.num_key_value_heads = 2, config.max_position_embeddings = 16;
  config.num_experts = 3, config.num_experts_per_tok = 2;
  const auto made = [&] {
    static std::mutex mutex;  // ranks are threads, and share the generator
    const std::lock_guard lock(mutex);
    auto net = std::make_unique<nn::Olmoe>(config);
    net->to(DType::f64);
    const NoGradGuard no_grad;
    int k = 0;
    for (const nn::Parameter& p : net->parameters()) {
      p.copy_(wave(p.sizes(), 0.37 + 0.01 * k, k) * 0.5);
      ++k;
    }
    return net;
  };
  // Each rank continues a prompt of its own. The ranks call the model equally often.
  const std::vector<std::vector<std::int64_t>> prompts{{3, 11, 7}, {5, 2, 19, 8}};
  constexpr std::int64_t kNew = 6;
  const auto words_of = [&](nn::LanguageModel& net, int rank) {
    nn::Sampler sampler({.temperature = 0.8, .seed = 4});
    return nn::generate(net, prompts[static_cast<std::size_t>(rank)], {.max_new_tokens = kNew}, sampler);
  };
  const auto one = made();
  const std::vector<std::vector<std::int64_t>> expected{words_of(*one, 0), words_of(*one, 1)};
  REQUIRE(expected[0] != expected[1]);
  on_ranks<int>(2, [&](const Group& world) {
    const int rank = world->rank();
    const Mesh mesh(world, {{"expert", -1}});
    const auto net = made();
    const ExpertParallel divided = expert_parallel(*net, mesh["expert"]);
    require(words_of(*net, rank) == expected[static_cast<std::size_t>(rank)], "other words");
    // With a cache, each token but the last passes through the layers once.
    const auto tokens = static_cast<std::int64_t>(prompts[static_cast<std::size_t>(rank)].size()) + kNew - 1;
    const std::int64_t rows = tokens * config.num_experts_per_tok * config.num_hidden_layers;
    require(divided.routed_bytes() == rows * config.hidden_size * 8, "bytes of ", tokens, " tokens");
    require(divided.bytes_sent() > 0, "the other rank has experts of these tokens");
    return 0;
  });
}
