// Tests the CUDA allocator without a cache (TAPESTRY_CUDA_ALLOCATOR=system). cuda_block_pool_test.cpp and
// cuda_stream_test.cpp test the caching one.
#include "tapestry/core/allocator.h"
#include "tapestry/core/stream.h"
#include "tapestry/core/tensor.h"
#include "tests/core/child.h"
#include "tests/support/catch.h"
#include "tests/support/fake_gpu.h"

using namespace tapestry;
using tapestry::testing::FakeGpus;

TEST_CASE("child: each tensor has a block of its size", "[.]") {
  FakeGpus gpus(2, 1 << 20);
  const Device first("cuda:0"), second("cuda:1");
  float read = 0;
  {
    const Tensor x = empty({101}, first), y = empty({3}, first), empty_one = empty({0}, first);
    CHECK(gpus.reserved(0) == 104 * sizeof(float));
    CHECK(memory_stats(first).allocated == 416);
    CHECK(memory_stats(first).reserved == 416);
    CHECK(memory_stats(first).allocations == 2);
    CHECK(memory_stats(second).allocated == 0);
    // Freeing the tensors must first wait for this kernel, which uses the memory of x.
    gpus.launch(current_stream(first), [&read, data = x.data<float>()] { read = data[100] = 7; });
  }
  CHECK(read == 7);
  CHECK(gpus.reserved(0) == 0);
  CHECK(memory_stats(first).allocated == 0);
  CHECK(memory_stats(first).peak_allocated == 416);
  reset_peak_memory(first);
  CHECK(memory_stats(first).peak_allocated == 0);
  empty_cache(DeviceType::cuda);
  CHECK_THROWS_WITH(empty({1 << 19}, second), ContainsSubstring("[allocate] no room for 2.00 MiB") &&
                                                  ContainsSubstring("on cuda:1: 1.00 MiB"));
}

TEST_CASE("TAPESTRY_CUDA_ALLOCATOR=system gives each tensor a block of its size") {
  const ChildResult child =
      run_child("child: each tensor has a block of its size", "TAPESTRY_CUDA_ALLOCATOR=system");
  INFO(child.output);
  CHECK(child.status == 0);
  CHECK_THAT(run_child("child: each tensor has a block of its size", "TAPESTRY_CUDA_ALLOCATOR=pool").output,
             ContainsSubstring("TAPESTRY_CUDA_ALLOCATOR is \"pool\"; set it to caching or system"));
}
