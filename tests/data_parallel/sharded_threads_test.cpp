// ShardedDataParallel must train as fully_shard() over ranks does, and as DataParallel does, bit for bit.
#include "tests/distributed/fsdp_models.h"
#include "tests/support/catch.h"

using namespace tapestry;
using namespace tapestry::distributed;
using namespace tapestry::test;

namespace {

constexpr int kPasses = 5;

Tensor words_loss(const Tensor& scores, const Tensor& y) {
  return cross_entropy(scores.reshape({-1, TinyGpt::kWords}), y.reshape({-1}));
}

std::vector<Device> cpus(int n) {
  std::vector<Device> devices;
  for (int i = 0; i < n; ++i) devices.emplace_back(DeviceType::cpu, i);
  return devices;
}

StateDictCopy copy_of(const nn::StateDict& state) {
  StateDictCopy copy;
  for (const auto& [name, tensor] : state) copy[name] = to_vector(tensor);
  return copy;
}

std::vector<nn::Module*> blocks_of(TinyGpt& net) { return {&net.block2, &net.block0, &net.block1}; }

struct Run {
  int batch = 6, accumulate = 1;
  double clip = 0;
  bool gathered = false;  // parallel(x) instead of parallel.loss()
  bool checkpointed = false;
};

// Trains with a DataParallel or a ShardedDataParallel of the net.
template <class Parallel>
std::vector<double> train(Parallel& parallel, TinyGpt& net, const Run& run, optim::Optimizer& optimizer,
                          int first = 0) {
  std::vector<double> losses;
  for (int step = first; step < first + kPasses; ++step) {
    optimizer.zero_grad();
    for (int part = 0; part < run.accumulate; ++part) {
      const auto [x, y] = formula_words(step * run.accumulate + part, 0, run.batch);
      const auto pass = [&, x_ = x, y_ = y] {
        const Tensor loss = run.gathered
                                ? words_loss(parallel(x_), y_)
                                : parallel.loss(std::tie(x_, y_), [&](const Tensor& a, const Tensor& b) {
                                    return words_loss(net(a), b);
                                  });
        losses.push_back(loss.item());
        loss.backward();
      };
      if constexpr (requires { parallel.no_sync(); }) {
        if (part + 1 < run.accumulate) {
          const auto guard = parallel.no_sync();
          pass();
          continue;
        }
      }
      pass();
    }
    if (run.clip > 0) nn::clip_grad_norm_(net.parameters(), run.clip);
    optimizer.step();
  }
  return losses;
}

}  // namespace

TEST_CASE("devices of one process train as the ranks of fully_shard do, bit for bit") {
  const auto expected = on_ranks<StateDictCopy>(3, [](const Group& group) {
    TinyGpt net;
    fill_by_formula(net);
    std::optional<FullyShard> handle;
    for (nn::Module* m : std::vector<nn::Module*>{&net.block0, &net.block1, &net.block2, &net})
      handle = fully_shard(*m, {.group = group, .reduce = ReduceOp::sum});
    optim::AdamW optimizer(net.parameters(), {.lr = 0.01});
    for (int step = 0; step < kPasses; ++step) {
      optimizer.zero_grad();
      const auto [x, y] = formula_words(step, group->rank() * 2, 2);
      (words_loss(net(x), y) * (1.0 / 3)).backward();  // the loss is divided, and gradients are added
      optimizer.step();
    }
    const auto full = handle->unshard(true);
    return copy_parameters(net);
  })[0];
  TinyGpt net;
  fill_by_formula(net);
  ShardedDataParallel sharded(net, cpus(3), {.units = blocks_of(net)});
  CHECK(sharded.units().size() == 4);
  CHECK(sharded.units()[0][0] == "block0.ln1.weight");  // in the order of the model, not of the list
  optim::AdamW optimizer(net.parameters(), {.lr = 0.01});
  train(sharded, net, {}, optimizer);
  StateDictCopy own = copy_of(sharded.whole_state_dict());
  own.erase("head.weight");  // another name of tokens.weight
  CHECK(own == expected);
}

TEST_CASE("devices of one process train in mixed precision as the ranks of fully_shard do, bit for bit") {
  const MixedPrecisionPolicy policy{.param_dtype = DType::bf16, .reduce_dtype = DType::f32};
  const auto expected = on_ranks<StateDictCopy>(2, [&](const Group& group) {
    TinyGpt net;
    fill_by_formula(net);
    for (nn::Module* m : std::vector<nn::Module*>{&net.block0, &net.block1, &net.block2, &net})
      fully_shard(*m, {.group = group, .mixed_precision = policy});
    optim::AdamW optimizer(net.parameters(), {.lr = 0.01});
    for (int step = 0; step < kPasses; ++step) {
      optimizer.zero_grad();
      const auto [x, y] = formula_words(step, group->rank() * 2, 2);
      words_loss(net(x), y).backward();
      optimizer.step();
    }
    StateDictCopy copy;
    for (const auto& [name, slot] : net.named_parameters()) {
      const Tensor full = empty(slot.layout()->whole_sizes(), {DType::f32, kCPU});
      slot.layout()->gather(0, full);
      copy[name] = to_vector(full);
    }
    return copy;
  })[0];
  TinyGpt net;
  fill_by_formula(net);
  ShardedDataParallel sharded(net, cpus(2), {.units = blocks_of(net), .mixed_precision = policy});
  optim::AdamW optimizer(net.parameters(), {.lr = 0.01});
  train(sharded, net, {.batch = 4}, optimizer);
  StateDictCopy own = copy_of(sharded.whole_state_dict());
  own.erase("head.weight");  // another name of tokens.weight
  CHECK(own == expected);
}

TEST_CASE("sharded devices train as DataParallel does, bit for bit, with every option") {
  struct Variant {
    const char* name;
    Run run;
    ShardedDataParallelOptions options;
    bool with_units = true;
  };
  for (const Variant& v : std::vector<Variant>{
           {"defaults", {}, {}},
           {"one unit", {}, {}, false},
           {"gathered outputs", {.gathered = true}, {}},
           {"uneven parts", {.batch = 7}, {.max_full_units = 1}},
           {"fewer samples than devices", {.batch = 2}, {}},
           {"fewer samples, gathered", {.batch = 1, .gathered = true}, {}},
           {"kept full", {}, {.reshard_after_forward = false}},
           {"model reshards, three units", {}, {.reshard_after_forward = true, .max_full_units = 3}},
           {"checkpointed", {.checkpointed = true}, {}},
           {"offload, which a CPU ignores", {}, {.offload = true}}}) {
    INFO(v.name);
    StateDictCopy weights[2];
    std::vector<double> losses[2];
    for (const bool is_sharded : {false, true}) {
      TinyGpt net(v.run.checkpointed);
      fill_by_formula(net);
      if (is_sharded) {
        ShardedDataParallelOptions options = v.options;
        if (v.with_units) options.units = blocks_of(net);
        ShardedDataParallel sharded(net, cpus(3), options);
        optim::SGD optimizer(net.parameters(), {.lr = 0.05, .momentum = 0.9});
        losses[1] = train(sharded, net, v.run, optimizer);
        weights[1] = copy_of(sharded.whole_state_dict());
      } else {
        DataParallel dp(net, cpus(3));
        optim::SGD optimizer(net.parameters(), {.lr = 0.05, .momentum = 0.9});
        losses[0] = train(dp, net, v.run, optimizer);
        weights[0] = copy_of(net.state_dict());
      }
    }
    CHECK(losses[0] == losses[1]);
    CHECK(weights[0] == weights[1]);
  }
}

TEST_CASE("sharded devices clip and accumulate as DataParallel does, within rounding") {
  const Run run{.batch = 5, .accumulate = 2, .clip = 0.3};
  StateDictCopy weights[2];
  for (const bool is_sharded : {false, true}) {
    TinyGpt net;
    net.to(DType::f64);
    fill_by_formula(net);
    optim::SGD optimizer(net.parameters(), {.lr = 0.05, .momentum = 0.9});
    if (is_sharded) {
      ShardedDataParallel sharded(net, cpus(4), {.units = blocks_of(net)});
      optim::SGD own(net.parameters(), {.lr = 0.05, .momentum = 0.9});
      train(sharded, net, run, own);
      weights[1] = copy_of(sharded.whole_state_dict());
    } else {
      DataParallel dp(net, cpus(4));
      train(dp, net, run, optimizer);
      weights[0] = copy_of(net.state_dict());
    }
  }
  CHECK(distance(weights[0], weights[1]) < 1e-12);
}

TEST_CASE("buffers of sharded devices are those of the first, and inputs get gradients") {
  StateDictCopy state[2];
  std::vector<double> gradients[2];
  for (const bool is_sharded : {false, true}) {
    SmallCnn net;
    fill_by_formula(net);
    const auto run = [&](auto& parallel) {
      optim::SGD optimizer(net.parameters(), {.lr = 0.05});
      for (int step = 0; step < 3; ++step) {
        auto [x, y] = formula_batch(step, 0, 6);
        x = x.to(DType::f32);
        x.set_requires_grad();
        optimizer.zero_grad();
        cross_entropy(parallel(x), y).backward();
        for (const double g : to_vector(x.grad())) gradients[is_sharded].push_back(g);
        optimizer.step();
      }
      net.eval();
      const NoGradGuard no_grad;
      for (const double v : to_vector(parallel(formula_batch(9, 0, 4).first.to(DType::f32))))
        gradients[is_sharded].push_back(v);
    };
    if (is_sharded) {
      ShardedDataParallel sharded(net, cpus(3), {.units = {&net.conv2, &net.fc}});
      run(sharded);
      state[1] = copy_of(sharded.whole_state_dict());
    } else {
      DataParallel dp(net, cpus(3));
      run(dp);
      state[0] = copy_of(net.state_dict());
    }
  }
  CHECK(state[0] == state[1]);
  CHECK(gradients[0] == gradients[1]);
}

TEST_CASE("whole states go to other models and back, with the optimizer's") {
  TinyGpt net, copy, plain;
  fill_by_formula(net);
  ShardedDataParallel sharded(net, cpus(3), {.units = blocks_of(net)});
  ShardedDataParallel other(copy, cpus(3), {.units = {&copy.block1}});
  optim::AdamW optimizer(net.parameters(), {.lr = 0.01}), other_optimizer(copy.parameters(), {.lr = 0.1});
  train(sharded, net, {}, optimizer);
  const nn::StateDict state = sharded.whole_state_dict(), moments = sharded.whole_state_dict(optimizer);
  plain.load_state_dict(state);
  CHECK(copy_of(plain.state_dict()) == copy_of(state));
  copy.load_state_dict(state);
  other_optimizer.load_state_dict(moments);
  CHECK(copy_of(other.whole_state_dict(other_optimizer)) == copy_of(moments));
  train(sharded, net, {}, optimizer, kPasses);
  train(other, copy, {}, other_optimizer, kPasses);
  CHECK(copy_of(sharded.whole_state_dict()) == copy_of(other.whole_state_dict()));
  CHECK(copy_of(sharded.whole_state_dict()) != copy_of(state));
}

TEST_CASE("unshard() shows whole parameters and keeps changes on all devices") {
  TinyGpt net;
  fill_by_formula(net);
  ShardedDataParallel sharded(net, cpus(3), {.units = blocks_of(net)});
  CHECK(net.block1.up.weight.size(0) == 5);  // 13 rows are 5, 5 and 3
  const std::vector<double> before = to_vector(sharded.whole_state_dict()[0].second);
  {
    const auto full = sharded.unshard();
    CHECK(net.block1.up.weight.size(0) == 13);
    CHECK(to_vector(net.tokens.weight) == before);
    const NoGradGuard no_grad;
    net.tokens.weight.mul_(2);
    net.block1.up.bias->fill_(3);
  }
  CHECK(net.block1.up.weight.size(0) == 5);
  const nn::StateDict state = sharded.whole_state_dict();
  for (std::size_t i = 0; i < before.size(); ++i) CHECK(to_vector(state[0].second)[i] == 2 * before[i]);
  for (int r = 0; r < 3; ++r)
    for (const double v : to_vector(net.block1.up.bias.replica(r))) CHECK(v == 3);
}

TEST_CASE("a model in host memory or on meta is divided a unit at a time") {
  struct Wide : nn::Module {
    nn::Linear& a = add<nn::Linear>("a", {.in_features = 256, .out_features = 256});
    nn::Linear& b = add<nn::Linear>("b", {.in_features = 256, .out_features = 256});
    nn::BatchNorm1d& bn = add<nn::BatchNorm1d>("bn", {.num_features = 256});
    Tensor forward(const Tensor& x) override { return bn(b(a(x))); }
  };
  manual_seed(3);
  Wide reference;
  const auto expected = copy_of(reference.state_dict());
  for (const bool meta : {false, true}) {
    INFO((meta ? "meta" : "cpu:0"));
    manual_seed(3);
    std::unique_ptr<Wide> net;
    {
      const DeviceGuard guard(meta ? Device("meta") : Device("cpu:0"));
      net = std::make_unique<Wide>();
    }
    std::int64_t before[4];
    for (int r = 0; r < 4; ++r) before[r] = memory_stats(Device(DeviceType::cpu, r)).allocated;
    ShardedDataParallel sharded(*net, cpus(4), {.units = {&net->a, &net->b}});
    for (int r = 1; r < 4; ++r)
      CHECK(memory_stats(Device(DeviceType::cpu, r)).allocated - before[r] < 2 * 257 * 64 * 4 + 20000);
    if (!meta) CHECK(memory_stats(kCPU).allocated < before[0] - 2 * 256 * 192 * 4 + 20000);
    CHECK(copy_of(sharded.whole_state_dict()) == expected);
    CHECK(sharded(ones({8, 256})).sizes() == Shape{8, 256});
  }
}

TEST_CASE("one device trains alone through ShardedDataParallel") {
  StateDictCopy weights[2];
  for (const bool is_sharded : {false, true}) {
    TinyGpt net;
    fill_by_formula(net);
    optim::SGD plain(net.parameters(), {.lr = 0.05});
    if (is_sharded) {
      ShardedDataParallel sharded(net, {"cpu:2"}, {.units = blocks_of(net)});
      optim::SGD optimizer(net.parameters(), {.lr = 0.05});
      train(sharded, net, {}, optimizer);
      CHECK(net.tokens.weight->device() == Device("cpu:2"));
      weights[1] = copy_of(sharded.whole_state_dict());
    } else {
      DataParallel dp(net, {"cpu:2"});
      train(dp, net, {}, plain);
      weights[0] = copy_of(net.state_dict());
    }
  }
  CHECK(weights[0] == weights[1]);
}
