#include "tapestry/kernels/scratch.h"

#include "tapestry/core/allocator.h"
#include "tests/support/catch.h"

using namespace tapestry;

TEST_CASE("workspace of no elements takes no memory") {
  const auto allocations = [] { return memory_stats(kCPU).allocations; };
  const std::int64_t before = allocations();
  const kernels::Scratch<float> none(kCPU, 0), unused;
  CHECK(none.data() == nullptr);
  CHECK(unused.data() == nullptr);
  CHECK(allocations() == before);
  const kernels::Scratch<float> some(kCPU, 3);
  some.data()[2] = 1;
  CHECK(allocations() == before + 1);
}
