#include "tapestry/core/memory_record.h"

#include <optional>
#include <thread>

#include "tapestry/autograd/ops/creation.h"
#include "tapestry/core/allocator.h"
#include "tapestry/core/error.h"
#include "tests/support/catch.h"

using namespace tapestry;

namespace {

std::int64_t bytes_of(const MemorySample& sample, MemoryKind kind) {
  return sample.bytes[static_cast<std::size_t>(kind)];
}

}  // namespace

TEST_CASE("a record counts blocks by what they are used for") {
  const Tensor before = zeros({1000});
  std::optional<Tensor> freed(zeros({500}));
  MemoryRecord record;
  const std::int64_t at_begin = memory_stats(kCPU).allocated;
  const Tensor weight = zeros({100}), gradient = zeros({100});
  tag_memory(weight, MemoryKind::parameters);
  tag_memory(weight, MemoryKind::activations);                    // forward saves parameters, too
  tag_memory(gradient.narrow(0, 50, 10), MemoryKind::gradients);  // any part of the block
  tag_memory(before, MemoryKind::parameters);                     // unknown, so it stays `other`
  std::vector<MemorySample> samples = record.samples(kCPU);
  REQUIRE(samples.size() == 3);
  CHECK(samples[0].total() == at_begin);
  CHECK(samples[0].bytes[0] == 0);
  CHECK(bytes_of(samples[1], MemoryKind::parameters) == 400);
  CHECK(bytes_of(samples[1], MemoryKind::gradients) == 0);
  CHECK(bytes_of(samples[2], MemoryKind::parameters) == 400);
  CHECK(bytes_of(samples[2], MemoryKind::gradients) == 400);
  CHECK(bytes_of(samples[2], MemoryKind::activations) == 0);
  CHECK(samples[2].total() == at_begin + 800);
  CHECK((samples[0].seconds == 0 && samples[1].seconds <= samples[2].seconds));

  record.restart();
  freed.reset();  // a block from before the record
  { const Tensor copy = zeros({25}); }
  inherit_memory_kind(weight, gradient);
  samples = record.samples(kCPU);
  REQUIRE(samples.size() == 3);
  CHECK(bytes_of(samples[0], MemoryKind::parameters) == 800);
  CHECK(samples[0].total() == at_begin + 800);
  CHECK(samples[1].total() == at_begin + 800 - 2000 + 100);
  CHECK(samples[2].total() == memory_stats(kCPU).allocated);
  CHECK_THROWS_AS(record.samples(Device(DeviceType::cpu, kMaxDevices - 1)), DeviceError);
}

TEST_CASE("the largest sum of the kinds is the allocator's peak") {
  MemoryRecord record;
  std::vector<Tensor> kept;
  record.restart();
  reset_peak_memory(kCPU);
  for (int i = 1; i < 40; ++i) {
    kept.push_back(zeros({i * 10}));
    tag_memory(kept.back(), static_cast<MemoryKind>(i % kNumMemoryKinds));
    if (i % 3 == 0) kept.erase(kept.begin());
  }
  std::int64_t most = 0;
  for (const MemorySample& s : record.samples(kCPU)) {
    most = std::max(most, s.total());
    for (const std::int64_t bytes : s.bytes) CHECK(bytes >= 0);
  }
  CHECK(most == memory_stats(kCPU).peak_allocated);
}

TEST_CASE("without a record allocators are the usual ones, and tags do nothing") {
  Allocator* const usual = &allocator(DeviceType::cpu);
  Tensor kept;
  {
    const MemoryRecord record;
    CHECK(MemoryRecord::active());
    CHECK(&allocator(DeviceType::cpu) != usual);
    CHECK_THROWS_WITH(MemoryRecord(), ContainsSubstring("there is a record already"));
    CHECK(MemoryRecord::active());
    kept = zeros({8});
  }
  CHECK_FALSE(MemoryRecord::active());
  CHECK(&allocator(DeviceType::cpu) == usual);
  tag_memory(kept, MemoryKind::gradients);
  const std::int64_t allocated = memory_stats(kCPU).allocated;
  kept = {};  // allocated during the record, freed after it
  CHECK(memory_stats(kCPU).allocated == allocated - 32);
  const MemoryRecord again;
  CHECK(again.samples(kCPU).size() == 1);
}

TEST_CASE("threads may allocate, free and tag at the same time") {
  const MemoryRecord record;
  const std::int64_t before = memory_stats(kCPU).allocated;
  {
    std::vector<std::jthread> threads;
    for (int t = 0; t < 4; ++t)
      threads.emplace_back([] {
        for (int i = 0; i < 200; ++i) tag_memory(zeros({i + 1}), MemoryKind::buffers);
      });
  }
  const std::vector<MemorySample> samples = record.samples(kCPU);
  CHECK(samples.size() == 1 + 4 * 200 * 2);
  CHECK(samples.back().total() == before);
  CHECK(bytes_of(samples.back(), MemoryKind::buffers) == 0);
}
