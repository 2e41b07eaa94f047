// Tests that ZeroRedundancyOptimizer trains bit for bit as the optimizer without it, with all options of DDP.
#include <optional>

#include "tests/distributed/zero_support.h"
#include "tests/support/catch.h"
#include "tests/support/distributed.h"
#include "tests/support/effort.h"

using namespace tapestry;
using namespace tapestry::distributed;
using namespace tapestry::test;

namespace {

using distributed_test::Group, distributed_test::on_ranks;

struct Variant {
  std::string name;
  DdpOptions ddp = {};
  bool no_sync = false;     // two passes per step, the first one under no_sync()
  bool sync_twice = false;  // two passes per step that both average
  double clip = 0, clip_type = 2, grad_scale = 1;
  bool schedule = false, sync_bn = false;
  bool always_rare = false;  // every pass uses the same parameters
  bool only_last = false;    // with always_rare: only the last rank uses `rare`
  DType dtype = DType::f32;  // of the parameters
  bool scaled = false;       // by a GradScaler, which skips a step
  bool touched = false;      // averaged weights are put into the model for a while, and a bias is written
  CommHook hook = {};
  int steps = kSanitized ? 4 : 12;
};

// Trains and returns all parameters and buffers.
StateDictCopy train(const Group& group, const Variant& v, const MakeOptimizer& make) {
  UnevenNet net(v.dtype);
  if (v.sync_bn) convert_sync_batchnorm(net, group);
  DdpOptions options = v.ddp;
  options.process_group = group;
  if (options.bucket_cap_mb == 25) options.bucket_cap_mb = 1e-3;
  DistributedDataParallel ddp(net, options);
  ddp.set_comm_hook(v.hook);
  const std::unique_ptr<optim::Optimizer> optimizer = make(net, group);
  optimizer->set_grad_scale(v.grad_scale);
  optim::StepLR schedule(*optimizer, {.step_size = 7, .gamma = 0.8});
  optim::GradScaler scaler({.init_scale = 256, .growth_interval = 3, .enabled = v.scaled});
  optim::AveragedModel average(net, {.avg_fn = optim::get_ema_avg(0.9)});
  for (int step = 0; step < v.steps; ++step) {
    optimizer->zero_grad();
    for (int pass = 0; pass < (v.no_sync || v.sync_twice ? 2 : 1); ++pass) {
      const auto [x, labels] = uneven_batch(2 * step + pass, group->rank());
      net.use_rare = v.always_rare ? !v.only_last || group->rank() + 1 == group->size()
                                   : (step % 3 == 0 && (step % 6 == 3 || group->rank() == 0));
      const auto guard = v.no_sync && pass == 0 ? std::optional(ddp.no_sync()) : std::nullopt;
      Tensor loss = cross_entropy(ddp(x.to(v.dtype)), labels);
      if (v.scaled && step == 2 && group->rank() == 0) loss = loss * INFINITY;
      scaler.scale(loss).backward();
    }
    if (v.clip > 0) nn::clip_grad_norm_(net.parameters(), v.clip, v.clip_type);
    scaler.step(*optimizer);
    scaler.update();
    if (v.schedule) schedule.step();
    if (!v.touched) continue;
    average.update_parameters();
    if (step == 1) const auto scope = average.use();
    if (step == 2) net.wide.bias.detach().narrow(0, 3, 20).fill_(0.3);
  }
  StateDictCopy result = copy_state(net);
  if (v.touched)
    for (const auto& [name, t] : average.state_dict()) result["average " + name] = to_vector(t);
  return result;
}

template <class O>
MakeOptimizer plain(const typename O::Options& options) {
  return [=](nn::Module& net, const Group&) { return std::make_unique<O>(net.parameters(), options); };
}
template <class O>
MakeOptimizer zero(int stage, const typename O::Options& options) {
  return [=](nn::Module& net, const Group& group) {
    return std::make_unique<ZeroRedundancyOptimizer<O>>(
        net.parameters(), ZeroOptions{.process_group = group, .stage = stage, .bucket_cap_mb = 1e-3},
        options);
  };
}

// Compares both stages with DDP alone, on each number of ranks. `tolerance` is a relative distance of
// stage 2.
void compare(const Variant& v, const MakeOptimizer& ddp, const MakeOptimizer& one, const MakeOptimizer& two,
             const std::vector<int>& worlds, double tolerance = 0) {
  for (const int ranks : kSanitized ? std::vector{worlds.front()} : worlds) {
    INFO(v.name << ", " << ranks << " ranks");
    using Results = std::vector<StateDictCopy>;
    const Results expected = on_ranks<StateDictCopy>(ranks, [&](const Group& g) { return train(g, v, ddp); });
    const Results first = on_ranks<StateDictCopy>(ranks, [&](const Group& g) { return train(g, v, one); });
    const Results second = on_ranks<StateDictCopy>(ranks, [&](const Group& g) { return train(g, v, two); });
    for (std::size_t r = 0; r < expected.size(); ++r) {
      CHECK(distance(first[r], expected[r]) == 0);
      CHECK(distance(second[r], expected[r]) <= tolerance);
      // All ranks have the same parameters. Their running statistics differ.
      CHECK(second[r].at("wide.weight") == second[0].at("wide.weight"));
      CHECK(second[r].at("conv.weight") == second[0].at("conv.weight"));
    }
    CHECK(distance(expected[0], copy_state(UnevenNet(v.dtype))) > 1e-3);
  }
}

const optim::AdamWOptions kAdamW{.lr = 0.01, .weight_decay = 0.1};

void compare_adamw(const Variant& v, const std::vector<int>& worlds = {3}, double tolerance = 0) {
  compare(v, plain<optim::AdamW>(kAdamW), zero<optim::AdamW>(1, kAdamW), zero<optim::AdamW>(2, kAdamW),
          worlds, tolerance);
}

}  // namespace

TEST_CASE("ZeRO trains bit for bit as DDP on 1, 2, 3 and 4 ranks") {
  compare_adamw({.name = "small buckets", .steps = kSteps}, {3, 2, 4});
  if (!kSanitized) compare_adamw({.name = "one rank"}, {1});
}

TEST_CASE("ZeRO trains bit for bit as DDP with the options of DDP") {
  compare_adamw({.name = "a bucket per parameter", .ddp = {.bucket_cap_mb = 1e-6, .first_bucket_mb = 1e-6}});
  compare_adamw({.name = "unused found late", .ddp = {.find_unused_parameters = false}});
  compare_adamw({.name = "SyncBatchNorm", .sync_bn = true});
  if (kSanitized) return;
  compare_adamw({.name = "one bucket", .ddp = {.bucket_cap_mb = 1, .first_bucket_mb = 1}});
  compare_adamw({.name = "order kept", .ddp = {.relearn_order = false}});
  compare_adamw({.name = "static graph", .ddp = {.static_graph = true}, .always_rare = true});
  compare_adamw({.name = "static graphs that differ",
                 .ddp = {.static_graph = true},
                 .always_rare = true,
                 .only_last = true});
  compare_adamw({.name = "compressed", .hook = bf16_compress});
}

TEST_CASE("ZeRO accumulates, scales and clips gradients as DDP does") {
  compare_adamw({.name = "no_sync", .no_sync = true});
  // The norm of stage 2 is rounded differently, and so are sums of several averaged passes. SGD keeps small
  // differences small; AdamW divides by the gradient's size, which is nearly 0 for the bias before a batch
  // norm.
  const auto compare_sgd = [](const Variant& v, int ranks) {
    const optim::SGDOptions sgd{.lr = 0.05, .momentum = 0.9};
    compare(v, plain<optim::SGD>(sgd), zero<optim::SGD>(1, sgd), zero<optim::SGD>(2, sgd), {ranks}, 1e-5);
  };
  compare_sgd({.name = "clipping after no_sync", .no_sync = true, .clip = 0.05}, 2);
  if (kSanitized) return;
  compare_adamw({.name = "grad_scale and schedule", .grad_scale = 0.25, .schedule = true});
  compare_sgd({.name = "clipping", .clip = 0.05}, 3);
  compare_sgd({.name = "clipping to the largest element", .clip = 0.01, .clip_type = INFINITY}, 2);
  compare_sgd({.name = "two averaged passes", .sync_twice = true}, 3);
}

TEST_CASE("ZeRO trains bit for bit as DDP on every transport") {
  for (const distributed_test::Transport& transport : distributed_test::transports()) {
    INFO(transport.name);
    const auto run = [&](const MakeOptimizer& make) {
      std::vector<StateDictCopy> results(2);
      distributed_test::run_ranks_well(
          transport, 2,
          [&](const Group& g) {
            results[static_cast<std::size_t>(g->rank())] = train(g, {.name = "transport"}, make);
          },
          distributed_test::kBounded);
      return results;
    };
    const auto expected = run(plain<optim::AdamW>(kAdamW));
    for (const int stage : {1, 2}) {
      const auto divided = run(zero<optim::AdamW>(stage, kAdamW));
      for (std::size_t r = 0; r < 2; ++r) CHECK(distance(divided[r], expected[r]) == 0);
    }
  }
}

namespace {

template <class O>
void compare_optimizer(const std::string& name, const typename O::Options& options) {
  compare({.name = name}, plain<O>(options), zero<O>(1, options), zero<O>(2, options), {3});
}

}  // namespace

TEST_CASE("ZeRO divides every elementwise optimizer") {
  compare_optimizer<optim::SGD>("SGD with momentum", {.lr = 0.05, .momentum = 0.9, .nesterov = true});
  if (kSanitized) return;
  compare_optimizer<optim::SGD>("SGD", {.lr = 0.05});
  compare_optimizer<optim::Adam>("Adam with amsgrad", {.lr = 0.01, .weight_decay = 0.01, .amsgrad = true});
  compare_optimizer<optim::RMSprop>("RMSprop", {.lr = 0.01, .momentum = 0.5});
  compare_optimizer<optim::Adagrad>("Adagrad", {.lr = 0.01});
  compare_optimizer<optim::NAdam>("NAdam", {.lr = 0.01});
  compare_optimizer<optim::Lion>("Lion", {.lr = 0.001});
}

TEST_CASE("ZeRO trains f16 and bf16 parameters bit for bit as DDP, by masters and by stochastic rounding") {
  for (const auto how : {optim::LowPrecision::master, optim::LowPrecision::stochastic}) {
    // A learning rate of which most steps are below half an ulp.
    const optim::AdamWOptions adam{.lr = 1e-3, .low_precision = how};
    const auto check = [&](const Variant& v, int ranks) {
      INFO(static_cast<int>(how));
      compare(v, plain<optim::AdamW>(adam), zero<optim::AdamW>(1, adam), zero<optim::AdamW>(2, adam),
              {ranks});
    };
    const bool masters = how == optim::LowPrecision::master;
    if (!kSanitized || masters) check({.name = "bf16", .dtype = DType::bf16, .touched = true}, 3);
    if (!kSanitized || !masters) check({.name = "f16", .dtype = DType::f16, .scaled = true}, 2);
    if (!kSanitized) check({.name = "bf16 and no_sync", .no_sync = true, .dtype = DType::bf16}, 2);
  }
  if (kSanitized) return;
  // Stage 2 joins the norms of the parts in another order. One ulp of bf16 is 2^-7 of a value.
  const optim::SGDOptions sgd{.lr = 0.05, .momentum = 0.9};
  compare({.name = "bf16 and clipping", .clip = 0.05, .dtype = DType::bf16}, plain<optim::SGD>(sgd),
          zero<optim::SGD>(1, sgd), zero<optim::SGD>(2, sgd), {2}, 0x1p-7);
}

TEST_CASE("ZeRO keeps the options of parameter groups apart") {
  using Optimizer = optim::AdamW;
  const auto groups = [](nn::Module& net) {
    std::vector<optim::ParamGroup<optim::AdamWOptions>> list(2);
    for (const auto& [name, slot] : net.named_parameters())
      list[slot.dim() > 1 ? 0 : 1].params.push_back(slot);
    list[0].options = {.lr = 0.02, .weight_decay = 0.2};
    list[1].options = {.lr = 0.005, .betas = {0.8, 0.9}, .weight_decay = 0};
    return list;
  };
  const auto divided = [&](int stage) {
    return [&, stage](nn::Module& net, const Group& group) {
      return std::make_unique<ZeroRedundancyOptimizer<Optimizer>>(
          groups(net), ZeroOptions{.process_group = group, .stage = stage, .bucket_cap_mb = 1e-3});
    };
  };
  compare({.name = "groups", .schedule = true},
          [&](nn::Module& net, const Group&) { return std::make_unique<Optimizer>(groups(net)); }, divided(1),
          divided(2), {3});
}

TEST_CASE("ZeRO works if there are fewer parameters than ranks and if parts are empty") {
  // The only parameter with elements has 3, which lie on one rank.
  for (const int stage : {1, 2}) {
    const auto results = on_ranks<std::vector<double>>(4, [&](const Group& group) {
      nn::Linear net({.in_features = 3, .out_features = 1, .bias = false});
      fill_by_formula(net);
      DistributedDataParallel ddp(net, {.process_group = group});
      ZeroRedundancyOptimizer<optim::AdamW> optimizer(net.parameters(),
                                                      {.process_group = group, .stage = stage}, {.lr = 0.1});
      for (int step = 0; step < 3; ++step) {
        optimizer.zero_grad();
        ddp(full({2, 3}, group->rank() + 1.0)).sum().backward();
        optimizer.step();
      }
      std::vector<double> result = to_vector(net.weight);
      result.push_back(static_cast<double>(optimizer.local_elements().at(0)));
      return result;
    });
    nn::Linear net({.in_features = 3, .out_features = 1, .bias = false});
    fill_by_formula(net);
    optim::AdamW optimizer(net.parameters(), {.lr = 0.1});
    for (int step = 0; step < 3; ++step) {
      net.weight.set_grad(full({1, 3}, 5.0));
      optimizer.step();
    }
    for (std::size_t r = 0; r < 4; ++r) {
      std::vector<double> expected = to_vector(net.weight);
      expected.push_back(r == 0 ? 3 : 0);
      CHECK(results[r] == expected);
    }
  }
}

TEST_CASE("stage 1 needs no DistributedDataParallel") {
  const auto results = on_ranks<std::vector<double>>(2, [&](const Group& group) {
    nn::Linear net({.in_features = 30, .out_features = 2});
    fill_by_formula(net);
    ZeroRedundancyOptimizer<optim::SGD> optimizer(net.parameters(), {.process_group = group}, {.lr = 0.5});
    for (const nn::Parameter& p : net.parameters()) p.set_grad(ones(p.sizes()));
    optimizer.step();
    distributed_test::require(net.weight.tensor().version() > 0, "the version did not change");
    return to_vector(net.weight);
  });
  nn::Linear net({.in_features = 30, .out_features = 2});
  fill_by_formula(net);
  const std::vector<double> expected = to_vector(net.weight.detach() - 0.5);
  CHECK(results[0] == expected);
  CHECK(results[1] == expected);
}

TEST_CASE(
    "in stage 2, grad() is cleared and replaced as any gradient, and grad() of autograd leaves it alone") {
  on_ranks<int>(2, [&](const Group& group) {
    using distributed_test::require;
    nn::Linear net({.in_features = 40, .out_features = 1, .bias = false});
    DistributedDataParallel ddp(net, {.process_group = group});
    ZeroRedundancyOptimizer<optim::SGD> optimizer(net.parameters(), {.process_group = group, .stage = 2},
                                                  {.lr = 1});
    const auto pass = [&](double x) { ddp(full({1, 40}, x)).sum().backward(); };
    const auto change = [&] {
      const Tensor before = net.weight.clone();
      optimizer.step();
      return (before - net.weight).detach().mean().item();
    };
    fill_by_formula(net);
    pass(1);
    require(change() == 1, "one pass");
    pass(2);  // adds to the first
    require(std::abs(change() - 3) < 1e-6, "two passes");
    net.zero_grad();
    require(!net.weight.grad().defined(), "zero_grad left a gradient");
    pass(4);
    require(std::abs(change() - 4) < 1e-6, "after zero_grad");
    const Tensor unused = autograd::grad({net(ones({1, 40})).sum()}, {net.weight})[0];
    require(unused.numel() == 40 && net.weight.grad().defined(), "autograd::grad() took the gradient");
    require(std::abs(change() - 4) < 1e-6, "after autograd::grad()");
    {
      const auto alone = ddp.no_sync();
      pass(1);
    }
    pass(1);
    require(std::abs(change() - 6) < 1e-6, "a part, a pass under no_sync and a pass");
    return 0;
  });
}
