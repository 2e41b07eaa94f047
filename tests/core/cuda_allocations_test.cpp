// Counts the host allocations that making CUDA tensors costs once the allocators' caches are warm.
#include <cstdint>
#include <cstdlib>
#include <new>
#include <utility>
#include <vector>

#include "tapestry/core/allocator.h"
#include "tapestry/core/tensor.h"
#include "tests/support/catch.h"
#include "tests/support/fake_gpu.h"

namespace {
thread_local std::int64_t taken = 0;  // number of host allocations by this thread
}

#ifndef TAPESTRY_SANITIZED  // the sanitizers replace operator new themselves
void* operator new(std::size_t bytes) {
  ++taken;
  if (void* const data = std::malloc(bytes ? bytes : 1)) return data;
  throw std::bad_alloc();
}
void operator delete(void* data) noexcept { std::free(data); }
void operator delete(void* data, std::size_t) noexcept { std::free(data); }
#endif

using namespace tapestry;

TEST_CASE("after a warm-up, making a CUDA tensor allocates host memory only for its storage") {
  testing::FakeGpus gpus(1);
  const TensorOptions options(DType::f32, "cuda:0");
  // Makes tensors of each size class and frees them in another order, so that the pool splits and merges
  // blocks.
  const auto step = [&] {
    Tensor a = empty({1000}, options), b = empty({50'000}, options), c = empty({3'000'000}, options);
    a = Tensor();
    Tensor d = empty({10}, options), e = empty({100}, options);
    c = Tensor();
    const Tensor f = empty({400'000}, options);
  };
  step();
  step();
  const std::int64_t before = taken, allocations = memory_stats("cuda:0").allocations;
  step();
  CHECK(memory_stats("cuda:0").allocations - allocations == 6);
  const std::int64_t taken_by_step = taken - before;
#ifndef TAPESTRY_SANITIZED
  CHECK(taken_by_step == 6);
#else
  CHECK(taken_by_step == 0);
#endif
}
