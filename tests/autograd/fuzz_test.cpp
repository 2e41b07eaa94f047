// Random cases of every operation: the recorded cases with other sizes, values and parameters. The reference
// is the operation itself, in f64, on dense inputs. It finds errors of single dtypes, layouts and sizes.
// tools/fuzz_ops compares random cases with PyTorch, which this program cannot do.
// TAPESTRY_FUZZ_SEED draws other cases, and TAPESTRY_FUZZ_CASES sets the number of cases per operation.
#include <cstdio>
#include <ctime>
#include <string>

#include "tapestry/autograd/ops.h"
#include "tests/support/effort.h"
#include "tests/support/fuzz_setting.h"
#include "tests/support/op_fuzz.h"

using namespace tapestry::test;

namespace {

// Cases per operation. autograd.fuzz_many has more.
constexpr int kCases = tapestry::kSanitized ? 3 : 8;

}  // namespace

TEST_CASE("random cases of each operation agree with their results in f64") {
  const std::uint64_t seed = fuzz_setting("TAPESTRY_FUZZ_SEED", 1);
  const auto count = static_cast<int>(fuzz_setting("TAPESTRY_FUZZ_CASES", kCases));
  const std::clock_t begin = std::clock();
  const FuzzResult result = fuzz_operations(seed, count);
  std::printf("fuzz: TAPESTRY_FUZZ_SEED=%llu, %d cases, %.1f s of CPU time\n",
              static_cast<unsigned long long>(seed), result.cases,
              static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC);
  INFO("TAPESTRY_FUZZ_SEED=" << seed << " TAPESTRY_FUZZ_CASES=" << count << " repeats these cases");
  for (const std::string& failure : result.failures) FAIL_CHECK(failure);
  CHECK(result.cases > 100 * count);  // most draws are valid
}

TEST_CASE(
    "the fuzzer finds an operation that is wrong in one layout, one dtype, one gradient, or for one size") {
  using tapestry::DType;
  using tapestry::Tensor;
  const auto failures = [](const OpFunction& fn) {
    return fuzz_operation("mul", "arithmetic", fn, 1, 40).failures.size();
  };
  const OpFunction right = [](const OpCase& c) { return c[0] * c[1]; };
  CHECK(failures(right) == 0);
  CHECK(failures([&](const OpCase& c) { return c[0].is_contiguous() ? c[0] * c[1] : c[0] * c[1] + 1e-3; }) >
        0);
  CHECK(failures([&](const OpCase& c) {
          return c[0].dtype() == DType::bf16 ? c[0] * c[1] * 1.05 : c[0] * c[1];
        }) > 0);
  CHECK(failures([&](const OpCase& c) {
          const Tensor y = c[0] * c[1];
          return y.dtype() == DType::f32 && y.dim() > 0 && y.size(-1) == 7 ? y * 1.0001 : y;
        }) > 0);

  // y, with a gradient that is 1.001 times as large.
  const auto steeper = [](const Tensor& y) { return y + (y - y.detach()) * 1e-3; };
  CHECK(fuzz_operation(
            "softmax", "softmax",
            [&](const OpCase& c) {
              const Tensor y = softmax(c[0], c.integer("dim"));
              return y.dtype() == DType::f32 ? steeper(y) : y;
            },
            1, 40)
            .failures.size() > 0);
  CHECK(fuzz_operation(
            "layer_norm", "norm",
            [&](const OpCase& c) {
              const Tensor y = layer_norm(c[0], c.dims("normalized_shape"), c[1], c[2], c.real("eps", 1e-5));
              return y.dtype() == DType::f32 ? steeper(y) : y;
            },
            1, 40)
            .failures.size() > 0);
}
