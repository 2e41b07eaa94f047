// The memory of DistributedDataParallel's buckets.
#include "tapestry/core/allocator.h"
#include "tapestry/core/memory_record.h"
#include "tapestry/tapestry.h"
#include "tests/support/catch.h"
#include "tests/support/distributed.h"

using namespace tapestry;
using namespace tapestry::distributed;

TEST_CASE("the buckets of DistributedDataParallel count as gradients before and after backward") {
  const MemoryRecord record;
  const auto gradients = [&] {
    return record.samples(kCPU).back().bytes[static_cast<std::size_t>(MemoryKind::gradients)];
  };
  constexpr std::int64_t kParameters = 4 * (64 * 32 + 32), kRanks = 2;
  std::vector<std::int64_t> before(kRanks), after(kRanks);
  distributed_test::on_ranks<int>(kRanks, [&](const std::shared_ptr<ProcessGroup>& group) {
    nn::Linear net({.in_features = 64, .out_features = 32});
    DistributedDataParallel ddp(net, {.process_group = group, .static_graph = true});
    const auto rank = static_cast<std::size_t>(group->rank());
    group->barrier().wait();
    before[rank] = gradients();
    group->barrier().wait();
    ddp(ones({3, 64})).sum().backward();
    group->barrier().wait();
    after[rank] = gradients();
    group->barrier().wait();
    return 0;
  });
  // The gradients are views of the buckets, so they need no memory of their own.
  for (std::size_t r = 0; r < kRanks; ++r) {
    CHECK(before[r] >= kRanks * kParameters);
    CHECK(before[r] < kRanks * kParameters + 1024);
    CHECK(after[r] >= kRanks * kParameters);
    CHECK(after[r] < kRanks * kParameters + 1024);
  }
}

TEST_CASE("the pass that takes the learned order of buckets needs no memory for the buckets of both orders") {
  distributed_test::on_ranks<int>(1, [](const std::shared_ptr<ProcessGroup>& group) {
    nn::Sequential net;
    for (int i = 0; i < 8; ++i) net.push_back(nn::Linear::Options{.in_features = 128, .out_features = 128});
    DistributedDataParallel ddp(net, {.process_group = group, .bucket_cap_mb = 0.1});
    optim::SGD optimizer(net.parameters(), {.lr = 0.1});
    std::vector<std::int64_t> peaks;
    for (int step = 0; step < 4; ++step) {
      reset_peak_memory(kCPU);
      optimizer.zero_grad();
      ddp(ones({2, 128})).sum().backward();
      optimizer.step();
      peaks.push_back(memory_stats(kCPU).peak_allocated);
    }
    distributed_test::require(peaks[1] == peaks[2] && peaks[2] == peaks[3], peaks[1], " bytes, then ",
                              peaks[2]);
    return 0;
  });
}
