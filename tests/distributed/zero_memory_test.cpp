// Measures the memory of ZeRO's stages against the table in distributed/zero/zero.h.
#include <algorithm>
#include <cstdlib>

#include "tapestry/core/allocator.h"
#include "tapestry/core/memory_record.h"
#include "tapestry/distributed/common/internal/division.h"
#include "tests/distributed/zero_support.h"
#include "tests/support/catch.h"
#include "tests/support/distributed.h"
#include "tests/support/effort.h"

using namespace tapestry;
using namespace tapestry::distributed;

namespace {

constexpr int kLayers = 16;
constexpr std::int64_t kWidth = 128;
constexpr double kBucket = 4.0 * kWidth * kWidth;  // bytes: one layer per bucket
constexpr double kParameters = 1.0 * kLayers * kWidth * kWidth;

struct Chain : nn::Module {
  std::vector<nn::Linear*> layers;
  Chain() {
    for (int i = 0; i < kLayers; ++i)
      layers.push_back(&add<nn::Linear>("layer" + std::to_string(i),
                                        {.in_features = kWidth, .out_features = kWidth, .bias = false}));
  }
  Tensor forward(const Tensor& x) override {
    Tensor h = x;
    for (nn::Linear* const layer : layers) h = (*layer)(h);
    return h;
  }
};

struct Bytes {
  double held = 0, peak = 0;  // per parameter and rank, of tensors
};

// Trains on `ranks` ranks of this process. Returns the memory that is held after a step, and the peak.
Bytes measure(int ranks, int stage, DType dtype = DType::f32) {
  Bytes result;
  empty_cache();
  const double before = static_cast<double>(memory_stats(kCPU).allocated);
  run_local_ranks(
      ranks,
      [&](const distributed_test::Group& group) {
        Chain net;
        net.to(dtype);
        const double mebibytes = kBucket / (1 << 20) * (dtype == DType::f32 ? 1 : 0.5);
        DistributedDataParallel ddp(
            net, {.process_group = group, .bucket_cap_mb = mebibytes, .first_bucket_mb = mebibytes});
        std::unique_ptr<optim::Optimizer> optimizer;
        if (stage == 0) optimizer = std::make_unique<optim::AdamW>(net.parameters());
        else
          optimizer = std::make_unique<ZeroRedundancyOptimizer<optim::AdamW>>(
              net.parameters(),
              ZeroOptions{.process_group = group, .stage = stage, .bucket_cap_mb = mebibytes});
        const auto step = [&] {
          optimizer->zero_grad();
          ddp(ones({1, kWidth}, {dtype, kCPU})).sum().backward();
          optimizer->step();
        };
        const auto scale = 1 / (kParameters * ranks);
        group->barrier().wait();
        if (group->rank() == 0) reset_peak_memory(kCPU);
        group->barrier().wait();
        for (int i = 0; i < 4; ++i) step();
        group->barrier().wait();
        if (group->rank() == 0) {
          const MemoryStats stats = memory_stats(kCPU);
          result = {(static_cast<double>(stats.allocated) - before) * scale,
                    (static_cast<double>(stats.peak_allocated) - before) * scale};
        }
        group->barrier().wait();
      },
      distributed_test::kBounded);
  return result;
}

}  // namespace

TEST_CASE("each stage of ZeRO holds the bytes per parameter that the table says") {
  // Bytes per parameter of one bucket.
  constexpr double kOneBucket = kBucket / kParameters;
  for (const int ranks : {2, 4}) {
    if (kSanitized && ranks == 4) continue;  // the test of bf16 below has 4 ranks
    const double n = ranks;
    // Gathered and updated parameters: two buckets and their parts. In stage 2 up to two buckets are reduced
    // while another is filled from a gradient that exists beside it.
    const double gathered = 2 * (1 + 1 / n) * kOneBucket;
    const double expected[] = {16, 8 + 8 / n, 4 + 12 / n};
    const double room[] = {kOneBucket, gathered + kOneBucket, 4 * kOneBucket + 4 / n};
    for (const int stage : {0, 1, 2}) {
      const Bytes bytes = measure(ranks, stage);
      INFO(ranks << " ranks, stage " << stage << ": " << bytes.held << " held, " << bytes.peak << " at most");
      CHECK(std::abs(bytes.held - expected[stage]) < 0.05 * expected[stage]);
      CHECK(bytes.peak < 1.05 * expected[stage] + room[stage]);
    }
  }
}

TEST_CASE("with bf16 parameters the ranks of ZeRO divide 12 bytes of masters and states") {
  constexpr double kRanks = 4;
  const double expected[] = {16, 4 + 12 / kRanks, 2 + 14 / kRanks};
  for (const int stage : {0, 1, 2}) {
    if (kSanitized && stage != 2) continue;
    const Bytes bytes = measure(static_cast<int>(kRanks), stage, DType::bf16);
    INFO("stage " << stage << ": " << bytes.held);
    CHECK(std::abs(bytes.held - expected[stage]) < 0.05 * expected[stage]);
  }
}

TEST_CASE("the memory of ZeRO's buckets counts as gradients, and what it gathers as other memory") {
  const MemoryRecord record;
  const auto most = [&](MemoryKind kind) {
    std::int64_t bytes = 0;
    for (const MemorySample& sample : record.samples(kCPU))
      bytes = std::max(bytes, sample.bytes[static_cast<std::size_t>(kind)]);
    return static_cast<double>(bytes);
  };
  releasable_tensor(1024, DType::f32, kCPU, MemoryKind::gradients);
  CHECK(most(MemoryKind::gradients) == 4096);
  CHECK(most(MemoryKind::other) == 0);
  // While two ranks gather a bucket, each has the whole bucket.
  measure(2, 2);
  CHECK(most(MemoryKind::other) >= 2 * kBucket);
}
