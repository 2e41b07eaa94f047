// Random cases of every operation on a CUDA device: ragged sizes, values and parameters that no one has
// recorded. The reference is the operation itself on the CPU in f64 (tests/support/op_fuzz.h).
#include <cstdio>

#include "tests/support/gpu.h"
#include "tests/support/op_fuzz.h"

using namespace tapestry::test;

TEST_CASE("random cases of each operation on a device agree with the CPU in f64") {
  if (no_gpu()) return;
  constexpr int kCases = 1;  // per operation
  const FuzzResult result = fuzz_operations(7, kCases, "cuda:0");
  std::printf("fuzz: %d cases\n", result.cases);
  for (const std::string& failure : result.failures) FAIL_CHECK(failure);
  CHECK(result.cases > 100 * kCases);
}
