// Tests MixedPrecisionPolicy: full parameters and gradients in other dtypes than the shards.
#include <array>
#include <atomic>

#include "tests/distributed/fsdp_models.h"
#include "tests/support/catch.h"
#include "tests/support/files.h"

using namespace tapestry;
using namespace tapestry::distributed;
using namespace tapestry::test;
using distributed_test::require;

namespace {

struct Case {
  std::string name;
  MixedPrecisionPolicy policy;
  std::optional<bool> reshard = {};
  int accumulate = 1;
  double clip = 0;
};

constexpr int kFewSteps = kSanitized ? 2 : 6;

Tensor loss_of(const Tensor& logits, const Tensor& y) {
  return cross_entropy(logits.reshape({-1, TinyGpt::kWords}), y.reshape({-1}));
}

/// Shards the blocks and the model. The output dtype is the model's.
FullyShard shard(TinyGpt& net, const Group& group, const Case& c) {
  FsdpOptions options{.group = group, .reshard_after_forward = c.reshard, .mixed_precision = c.policy};
  options.mixed_precision.output_dtype = {};
  for (nn::Module* block : std::vector<nn::Module*>{&net.block0, &net.block1, &net.block2})
    fully_shard(*block, options);
  options.mixed_precision.output_dtype = c.policy.output_dtype;
  return fully_shard(net, options);
}

/// The whole f32 parameters, from the shards.
StateDictCopy whole(const nn::Module& net) {
  StateDictCopy copy;
  for (const auto& [name, slot] : net.named_parameters()) {
    const Tensor full = empty(slot.layout()->whole_sizes(), {slot.layout()->stored(0).dtype(), kCPU});
    slot.layout()->gather(0, full);
    copy[name] = to_vector(full);
  }
  return copy;
}

Trained train_sharded(const Group& group, const Case& c, int steps = kFewSteps) {
  TinyGpt net;
  fill_by_formula(net);
  const FullyShard fsdp = shard(net, group, c);
  optim::AdamW optimizer(net.parameters(), {.lr = 0.01});
  Trained result;
  for (int step = 0; step < steps; ++step) {
    optimizer.zero_grad();
    for (int part = 0; part < c.accumulate; ++part) {
      const auto pass = [&] {
        const auto [x, y] = formula_words(step * c.accumulate + part, group->rank() * 2, 2);
        const Tensor loss = loss_of(net(x), y);
        result.losses.push_back(loss.item());
        loss.backward();
      };
      if (part + 1 < c.accumulate) {
        const auto no_sync = fsdp.no_sync();
        pass();
      } else {
        pass();
      }
    }
    for (const nn::Parameter& p : net.parameters()) {
      require(p.dtype() == DType::f32, "a shard is not f32");
      require(!p.grad().defined() || p.grad().dtype() == DType::f32, "a gradient is not f32");
    }
    if (c.clip > 0) nn::clip_grad_norm_(net.parameters(), c.clip);
    optimizer.step();
  }
  result.weights = whole(net);
  return result;
}

/// One process that casts as two ranks do: f32 parameters, a model in the dtype of the policy, and the mean
/// of the ranks' gradients in the dtype of the reduction. The result has the losses of each rank.
std::array<Trained, 2> train_alone(const Case& c) {
  const DType low_dtype = c.policy.param_dtype.value_or(DType::f32);
  const DType reduce_dtype = c.policy.reduce_dtype.value_or(low_dtype);
  TinyGpt net, low;
  fill_by_formula(net);
  low.to(low_dtype);
  const auto wide = net.parameters(), narrow = low.parameters();
  optim::AdamW optimizer(wide, {.lr = 0.01});
  std::array<Trained, 2> result;
  for (int step = 0; step < kFewSteps; ++step) {
    std::vector<Tensor> sums(wide.size());
    for (std::size_t r = 0; r < 2; ++r) {
      {
        const NoGradGuard no_grad;
        for (std::size_t i = 0; i < wide.size(); ++i) narrow[i]->copy_(wide[i]->detach());
      }
      std::vector<Tensor> own(wide.size());
      low.zero_grad();
      for (int part = 0; part < c.accumulate; ++part) {
        const auto [x, y] = formula_words(step * c.accumulate + part, static_cast<int>(r) * 2, 2);
        const Tensor logits = low(x);
        const Tensor loss = loss_of(c.policy.output_dtype ? logits.to(*c.policy.output_dtype) : logits, y);
        result[r].losses.push_back(loss.item());
        loss.backward();
        if (reduce_dtype == low_dtype) continue;
        for (std::size_t i = 0; i < wide.size(); ++i) {
          const Tensor g = narrow[i]->grad().to(reduce_dtype);
          own[i] = own[i].defined() ? own[i] + g : g;
        }
        low.zero_grad();
      }
      for (std::size_t i = 0; i < wide.size(); ++i) {
        const Tensor g = (reduce_dtype == low_dtype ? narrow[i]->grad() : own[i]).to(DType::f32);
        sums[i] = r == 0 ? g.clone() : sums[i] + g;
      }
    }
    for (std::size_t i = 0; i < wide.size(); ++i)
      wide[i]->set_grad((sums[i] * 0.5).to(reduce_dtype).to(DType::f32));
    if (c.clip > 0) nn::clip_grad_norm_(wide, c.clip);
    optimizer.step();
  }
  result[0].weights = result[1].weights = copy_parameters(net);
  return result;
}

}  // namespace

TEST_CASE("mixed precision: two ranks train as one process that does the same casts, bit for bit") {
  const MixedPrecisionPolicy usual{
      .param_dtype = DType::bf16, .reduce_dtype = DType::f32, .output_dtype = DType::f32};
  for (const Case& c : std::vector<Case>{
           {"bf16, reduced in f32", usual},
           {"bf16, reduced in bf16", {.param_dtype = DType::bf16}},
           {"f16, reduced in f32", {.param_dtype = DType::f16, .reduce_dtype = DType::f32}, true},
           {"f32, reduced in bf16", {.reduce_dtype = DType::bf16}, false},
           {"kept full", usual, false},
           {"resharded", usual, true},
           {"accumulation in f32", usual, {}, 3},
           {"accumulation in bf16", {.param_dtype = DType::bf16}, true, 2}}) {
    INFO(c.name);
    if (kSanitized && !c.reshard.value_or(false)) continue;
    const auto sharded = on_ranks<Trained>(2, [&](const Group& g) { return train_sharded(g, c); });
    const std::array<Trained, 2> expected = train_alone(c);
    for (std::size_t rank = 0; rank < 2; ++rank) {
      CHECK(sharded[rank].losses == expected[rank].losses);
      CHECK(sharded[rank].weights == expected[rank].weights);
    }
  }
  if (kSanitized) return;
  // The casts matter.
  const auto wide = on_ranks<Trained>(2, [&](const Group& g) { return train_sharded(g, {}); });
  const Trained alone = train_alone({"", usual})[0];
  CHECK(wide[0].weights != alone.weights);
  CHECK(std::abs(wide[0].losses.back() - alone.losses.back()) < 0.05);
}

TEST_CASE("mixed precision: clipping sees f32 gradients of all ranks") {
  const Case c{"", {.param_dtype = DType::bf16, .reduce_dtype = DType::f32}, {}, 1, 0.05};
  const auto sharded = on_ranks<Trained>(2, [&](const Group& g) { return train_sharded(g, c); });
  CHECK(distance(sharded[1].weights, train_alone(c)[0].weights) < 1e-4);
}

TEST_CASE("mixed precision halves the bytes that are sent, and the memory of full parameters") {
  struct Bytes {
    std::int64_t gathered = 0, reduced = 0;
    std::size_t full = 0, shards = 0;
  };
  const auto measure = [](const MixedPrecisionPolicy& policy) {
    return on_ranks<Bytes>(2, [&](const Group& group) {
      train_sharded(group, {.policy = policy}, 2);
      TinyGpt net;
      const FullyShard fsdp = shard(net, group, {.policy = policy});
      Bytes bytes;
      for (const CollectiveRecord& r : group->recorder().records()) {
        if (r.name.find("fsdp ") != 0) continue;
        const std::int64_t sent = r.shape.numel() * static_cast<std::int64_t>(dtype_size(r.dtype));
        if (r.op == Op::all_gather && r.name.find("all_gather (") != std::string::npos)
          bytes.gathered += sent;
        if (r.op == Op::reduce_scatter) bytes.reduced += sent;
      }
      for (const FsdpUnitReport& u : fsdp.report().units) {
        bytes.full += u.full_bytes;
        bytes.shards += u.shard_bytes;
      }
      return bytes;
    })[0];
  };
  const Bytes wide = measure({}), low = measure({.param_dtype = DType::bf16}),
              mixed = measure({.param_dtype = DType::bf16, .reduce_dtype = DType::f32});
  CHECK(wide.gathered > 0);
  CHECK(2 * low.gathered == wide.gathered);
  CHECK(mixed.gathered == low.gathered);
  CHECK(2 * low.full == wide.full);
  CHECK(low.shards == wide.shards);
  CHECK(mixed.reduced == wide.reduced);
  // The f32 flags, which say whether a rank used a parameter, are sent with the gradients.
  CHECK(low.reduced < 0.56 * double(wide.reduced));
  CHECK(low.reduced >= 0.5 * double(wide.reduced));

  // The memory of a model that is kept full: both ranks are threads of this process.
  const auto peak = [](const MixedPrecisionPolicy& policy) {
    std::atomic<std::int64_t> bytes{0};
    on_ranks<int>(2, [&](const Group& group) {
      nn::Linear net({.in_features = 256, .out_features = 256, .bias = false});
      const FullyShard fsdp = fully_shard(net, {.group = group, .mixed_precision = policy});
      const auto full = [&] {
        const auto scope = fsdp.unshard();
        group->barrier().wait();
        if (group->rank() == 0) bytes = memory_stats(kCPU).allocated;
        group->barrier().wait();
      };
      full();
      full();
      return 0;
    });
    return bytes.load();
  };
  const std::int64_t elements = 256 * 256, saved = peak({}) - peak({.param_dtype = DType::bf16});
  CHECK(saved == 2 * elements * 2);
}

TEST_CASE("mixed precision: f32 checkpoints load at another number of ranks, with and without it") {
  const tests::TempDir dir;
  const Case mixed{"", {.param_dtype = DType::bf16, .reduce_dtype = DType::f32}};
  const auto run = [&](int ranks, const Case& c, int steps) {
    return on_ranks<StateDictCopy>(ranks, [&](const Group& group) {
      TinyGpt net;
      fill_by_formula(net);
      shard(net, group, c);
      optim::AdamW optimizer(net.parameters(), {.lr = 0.01});
      Checkpointer checkpoints(dir / "run", group, {.keep_last = 0});
      const auto progress = checkpoints.resume({&net, &optimizer});
      for (int step = 0; step < steps; ++step) {
        optimizer.zero_grad();
        const auto [x, y] = formula_words(step, group->rank() * 2, 2);
        loss_of(net(x), y).backward();
        optimizer.step();
      }
      if (!progress) checkpoints.save({&net, &optimizer}, {.step = steps});
      StateDictCopy copy = whole(net);
      copy["step"] = {progress ? double(progress->step) : -1};
      return copy;
    })[0];
  };
  StateDictCopy saved = run(2, mixed, 3);
  saved["step"] = {3};
  CHECK(run(3, mixed, 0) == saved);
  CHECK(run(4, {}, 0) == saved);
  CHECK(run(1, mixed, 1) != saved);
}

TEST_CASE("shards of bf16 parameters keep their masters in checkpoints, at another number of ranks too") {
  const tests::TempDir dir;
  const auto run = [&](int ranks, int steps) {
    return on_ranks<StateDictCopy>(ranks, [&](const Group& group) {
      nn::Linear net({.in_features = 6, .out_features = 5});
      fill_by_formula(net);
      net.to(DType::bf16);
      fully_shard(net, {.group = group});
      optim::AdamW optimizer(net.parameters(), {.lr = 1e-4});
      Checkpointer checkpoints(dir / "run", group, {.keep_last = 0});
      const auto progress = checkpoints.resume({&net, &optimizer});
      for (int step = 0; step < steps; ++step) {
        optimizer.zero_grad();
        net(ones({2, 6}, DType::bf16)).square().sum().backward();
        optimizer.step();
      }
      if (!progress) checkpoints.save({&net, &optimizer}, {.step = steps});
      StateDictCopy copy;
      const nn::Region rows = net.weight.layout()->region(0);
      const nn::StateDict state = optimizer.local_state_dict();
      const std::vector<double> own = to_vector(*nn::find(state, "state.0.master_param"));
      for (std::int64_t row = 0; row < rows.sizes[0]; ++row)
        copy[std::to_string(rows.first[0] + row)] = {own.begin() + 6 * row, own.begin() + 6 * row + 6};
      return copy;
    });
  };
  const auto merged = [](const std::vector<StateDictCopy>& parts) {
    StateDictCopy all;
    for (const StateDictCopy& p : parts) all.insert(p.begin(), p.end());
    return all;
  };
  const StateDictCopy saved = merged(run(2, 5));
  CHECK(saved.size() == 5);
  CHECK(saved.at("0")[0] != static_cast<double>(static_cast<float>(BFloat16(float(saved.at("0")[0])))));
  CHECK(merged(run(3, 0)) == saved);
  CHECK(merged(run(1, 0)) == saved);
}

TEST_CASE("mixed precision: changes under unshard() leave the digits of what did not change") {
  on_ranks<int>(2, [](const Group& group) {
    nn::Linear net({.in_features = 3, .out_features = 4});
    fill_by_formula(net);
    const std::vector<double> before = to_vector(net.weight.tensor());
    const FullyShard fsdp =
        fully_shard(net, {.group = group, .mixed_precision = {.param_dtype = DType::bf16}});
    {
      const auto scope = fsdp.unshard();
      const NoGradGuard no_grad;
      require(net.weight.dtype() == DType::bf16, "the full parameter is not bf16");
      net.weight.tensor().detach().select(0, 1).fill_(0.3);
    }
    const std::vector<double> after = whole(net).at("weight");
    for (std::size_t i = 0; i < 12; ++i)
      require(after[i] == (i / 3 == 1 ? 0.30078125 : before[i]), concat({"element ", i}));
    return 0;
  });
}

TEST_CASE("mixed precision: what the library writes under unshard() has the digits of the shards") {
  on_ranks<int>(2, [](const Group& group) {
    nn::Linear net({.in_features = 3, .out_features = 3});
    const FullyShard fsdp =
        fully_shard(net, {.group = group, .mixed_precision = {.param_dtype = DType::bf16}});
    optim::SGD optimizer(net.parameters(), {.lr = 0.25});
    optim::AveragedModel average(net, {.avg_fn = optim::get_ema_avg(0)});
    net(ones({1, 3})).sum().backward();  // the gradient of every weight is 1
    const auto require_all = [](const char* what, const std::vector<double>& values, float expected) {
      for (const double v : values) require(v == static_cast<double>(expected), concat({what, ": ", v}));
    };
    const auto rounded = [](float v) { return static_cast<float>(BFloat16(v)); };
    {
      const auto scope = fsdp.unshard();
      net.load_state_dict({{"weight", full({3, 3}, 0.1)}, {"bias", zeros({3})}});
      require_all("loaded", to_vector(net.weight), rounded(0.1f));
      average.update_parameters();
      optimizer.step();
      require_all("stepped", to_vector(net.weight), rounded(0.1f - 0.25f));
      const auto use = average.use();
      require_all("the average", to_vector(net.weight), rounded(0.1f));
    }
    require_all("the shards", whole(net).at("weight"), 0.1f - 0.25f);
    const auto use = average.use();
    require_all("the average's shards", whole(net).at("weight"), 0.1f);
    return 0;
  });
}

TEST_CASE("mixed precision: inputs are cast unless that is switched off, and outputs if it is asked for") {
  on_ranks<int>(2, [](const Group& group) {
    for (const bool cast : {true, false}) {
      nn::Linear net({.in_features = 3, .out_features = 4});
      fully_shard(net, {.group = group,
                        .mixed_precision = {.param_dtype = DType::bf16, .cast_forward_inputs = cast}});
      Tensor x = ones({2, 3});
      x.set_requires_grad(true);
      if (cast) {
        const Tensor y = net(x);
        require(y.dtype() == DType::bf16, "the output is not bf16");
        y.sum().backward();
        require(x.grad().dtype() == DType::f32, "the input's gradient is not f32");
      } else {
        std::string text;
        try {
          net(x);
        } catch (const Error& e) {
          text = e.what();
        }
        require(text.find("bfloat16") != std::string::npos, "f32 times bf16: " + text);
        require(net(x.detach().to(DType::bf16)).dtype() == DType::bf16, "the output is not bf16");
      }
    }
    nn::Linear net({.in_features = 3, .out_features = 4});
    fully_shard(net, {.group = group, .mixed_precision = {.output_dtype = DType::f64}});
    require(net(ones({2, 3})).dtype() == DType::f64, "the output is not f64");
    return 0;
  });
}

TEST_CASE("mixed precision: a CNN with batch norm trains, and keeps f32 statistics") {
  const MixedPrecisionPolicy policy{
      .param_dtype = DType::bf16, .reduce_dtype = DType::f32, .output_dtype = DType::f32};
  struct Result {
    double first = 0, last = 0;
    std::vector<double> mean;
  };
  const auto results = on_ranks<Result>(2, [&](const Group& group) {
    SmallCnn net;
    fill_by_formula(net);
    fully_shard(net, {.group = group, .mixed_precision = policy});
    require(net.bn1.running_mean.dtype() == DType::f32, "the statistics are not f32");
    optim::SGD optimizer(net.parameters(), {.lr = 0.05, .momentum = 0.9});
    Result r;
    for (int step = 0; step < (kSanitized ? 2 : 30); ++step) {
      const auto [x, y] = formula_batch(0, group->rank() * 8, 8);
      optimizer.zero_grad();
      const Tensor loss = cross_entropy(net(x.to(DType::f32)), y);
      loss.backward();
      optimizer.step();
      (step == 0 ? r.first : r.last) = loss.item();
    }
    r.mean = to_vector(net.bn1.running_mean.tensor());
    return r;
  });
  for (const Result& r : results) CHECK((kSanitized || r.last < 0.5 * r.first));
  CHECK(results[0].mean != results[1].mean);
}

TEST_CASE("mixed precision: wrong dtypes, and policies that differ between ranks, are errors on every rank") {
  const auto errors = [](const std::function<FsdpOptions(int)>& options) {
    return on_ranks<std::string>(2, [&](const Group& group) -> std::string {
      nn::Linear net({.in_features = 3, .out_features = 4});
      FsdpOptions own = options(group->rank());
      own.group = group;
      try {
        fully_shard(net, own);
      } catch (const ValueError& e) {
        return net.weight.layout() ? "sharded" : e.what();
      }
      return "no error";
    });
  };
  for (const std::string& text :
       errors([](int) { return FsdpOptions{.mixed_precision = {.reduce_dtype = DType::i64}}; }))
    CHECK_THAT(text, ContainsSubstring("mixed_precision.reduce_dtype is int64"));
  for (const std::string& text : errors([](int rank) {
         return FsdpOptions{.mixed_precision = {.param_dtype = rank ? DType::f16 : DType::bf16}};
       }))
    CHECK_THAT(text, ContainsSubstring("param_dtype"));
}
