// Tests fully_shard of models that were built on the meta device.
#include <atomic>

#include "tests/distributed/fsdp_models.h"
#include "tests/support/catch.h"

using namespace tapestry;
using namespace tapestry::distributed;
using namespace tapestry::test;

namespace {

// Each rank is a thread with a generator of its own.
std::unique_ptr<TinyGpt> built_on(Device device, std::uint64_t seed) {
  Generator generator(seed);
  Context context = current_context();
  context.generator = &generator;
  const ContextGuard with_generator(context);
  const DeviceGuard on_device(device);
  return std::make_unique<TinyGpt>();
}

FullyShard shard(TinyGpt& net, const Group& group) {
  for (GptBlock* const block : {&net.block0, &net.block1, &net.block2}) fully_shard(*block, {.group = group});
  return fully_shard(net, {.group = group});
}

struct Layers : nn::Module {
  Layers(int count, std::int64_t width) {
    for (int i = 0; i < count; ++i)
      add<nn::Linear>("layer" + std::to_string(i),
                      {.in_features = width, .out_features = width, .bias = false});
  }
};

}  // namespace

TEST_CASE("a model from the meta device has the values of one that was built on the CPU, and trains alike") {
  const auto trained = [](bool meta, const Group& group) {
    // Rank 0's values count, so the others have another seed.
    const auto net = built_on(meta ? kMeta : kCPU, group->rank() == 0 ? 7 : 8);
    const FullyShard sharded = shard(*net, group);
    if (nn::has_meta_tensors(*net)) fail<Error>("tensors are still on the meta device");
    StateDictCopy first;
    {
      const auto full = sharded.unshard(true);
      first = copy_parameters(*net);
    }
    optim::SGD optimizer(net->parameters(), {.lr = 0.1});
    const auto [x, y] = formula_words(0, 2 * group->rank(), 2);
    cross_entropy((*net)(x).flatten(0, 1), y.flatten()).backward();
    optimizer.step();
    return std::pair(first, copy_parameters(*net));
  };
  using Copies = std::pair<StateDictCopy, StateDictCopy>;
  for (const int ranks : {1, 3}) {
    const auto expected = on_ranks<Copies>(ranks, [&](const Group& g) { return trained(false, g); });
    const auto meta = on_ranks<Copies>(ranks, [&](const Group& g) { return trained(true, g); });
    CHECK(meta == expected);
    CHECK(meta[0].first == copy_parameters(*built_on(kCPU, 7)));
  }
}

TEST_CASE("no rank holds more of a model from the meta device than its shards and one unit") {
  constexpr int kLayers = 16, kRanks = 4;
  constexpr std::int64_t kWidth = 128;
  std::atomic<std::int64_t> peak{0};
  on_ranks<int>(kRanks, [&](const Group& group) {
    const std::int64_t before = memory_stats(kCPU).allocated;
    group->barrier().wait();
    if (group->rank() == 0) reset_peak_memory(kCPU);
    group->barrier().wait();
    std::unique_ptr<Layers> net;
    {
      const DeviceGuard meta("meta");
      net = std::make_unique<Layers>(kLayers, kWidth);
    }
    for (nn::Module* const layer : net->children()) fully_shard(*layer, {.group = group});
    fully_shard(*net, {.group = group});
    group->barrier().wait();
    if (group->rank() == 0) peak = memory_stats(kCPU).peak_allocated - before;
    group->barrier().wait();
    return 0;
  });
  const double unit = 4.0 * kWidth * kWidth, all = kLayers * unit;
  INFO("the peak is " << double(peak) / all << " models");
  CHECK(double(peak) >= all);  // the shards of all ranks
  // A rank has the full tensor, a buffer of the broadcast, and the new shard at one time.
  CHECK(double(peak) <= 1.05 * (all + kRanks * 3 * unit));
}

TEST_CASE("a parameter whose values cannot be replayed is named on every rank") {
  const auto errors = on_ranks<std::string>(2, [](const Group& group) {
    const auto net = built_on(kMeta, 1);
    if (group->rank() == 1) {
      const NoGradGuard no_grad;
      const DeviceGuard meta("meta");
      net->ln.weight.copy_(ones({TinyGpt::kWidth, TinyGpt::kWidth}).matmul(ones({TinyGpt::kWidth})));
    }
    try {
      fully_shard(*net, {.group = group});
    } catch (const ValueError& error) {
      return std::string(error.what());
    }
    return std::string();
  });
  for (const std::string& error : errors) {
    CHECK_THAT(error, ContainsSubstring("ln.weight") && ContainsSubstring("meta"));
  }
}

namespace {

// A layer with tables that its options determine, and that no state dict has.
struct Rotated : nn::Module {
  explicit Rotated(bool by_matmul = false)
      : cosines(buffer("cosines", angles().cos(), false)),
        sines(buffer("sines", by_matmul ? angles().matmul(ones({3, 3})) : angles().sin(), false)) {}
  static Tensor angles() {
    return arange(0, 5, 1, DType::f32).unsqueeze(1) * (arange(0, 3, 1, DType::f32) * -3).exp();
  }
  nn::Linear& linear = add<nn::Linear>("linear", {.in_features = 3, .out_features = 3});
  nn::Buffer &cosines, &sines;
  Tensor forward(const Tensor& x) override { return linear(x * cosines + x * sines); }
};

}  // namespace

TEST_CASE("buffers that no state dict has are right after construction on the meta device") {
  const Rotated real;
  const auto expected = std::pair(to_vector(real.cosines.tensor()), to_vector(real.sines.tensor()));
  CHECK(real.state_dict().size() == 2);
  const auto build = [](bool by_matmul) {
    const DeviceGuard meta("meta");
    return std::make_unique<Rotated>(by_matmul);
  };
  for (const bool by_rank_1 : {false, true}) {
    const auto errors = on_ranks<std::string>(2, [&](const Group& group) {
      const auto net = build(by_rank_1 && group->rank() == 1);
      try {
        fully_shard(*net, {.group = group});
      } catch (const ValueError& error) {
        return std::string(error.what());
      }
      const bool same = to_vector(net->cosines.tensor()) == expected.first &&
                        to_vector(net->sines.tensor()) == expected.second &&
                        (*net)(ones({5, 3})).sizes() == Shape{5, 3};
      return std::string(same ? "" : "other tables");
    });
    for (const std::string& error : errors) {
      if (by_rank_1) CHECK_THAT(error, ContainsSubstring("sines") && ContainsSubstring("meta"));
      else CHECK(error.empty());
    }
  }
}
