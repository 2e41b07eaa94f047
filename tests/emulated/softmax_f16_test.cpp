// Tests that the f16 kernels of softmax match the CPU's kernels in f64 on every launch path.
#include "tapestry/kernels/cuda/softmax_f16.cuh"

#include <cmath>
#include <vector>

#include "tests/emulated/values.h"

using namespace tapestry;
using namespace tapestry::kernels;
namespace gpu = tapestry::kernels::cuda;
using namespace emulated;
using tapestry::kernels::log_softmax, tapestry::kernels::softmax;

namespace {

/// Checks that got differs from want by at most the rounding to f16, of results below 2^-14 too, and
/// `error` in units of 2^-11.
void check_half(const char* what, const Block<Half>& got, const Values& want, double error) {
  CAPTURE(what);
  std::size_t bad = 0;
  for (std::size_t i = 0; i < want.size(); ++i) {
    const double value = static_cast<double>(static_cast<float>(got[i]));
    const bool fits = std::isnan(want[i])
                          ? std::isnan(value)
                          : value == want[i] ||
                                std::abs(value - want[i]) <= 0x1p-11 * (error + std::abs(want[i])) + 0x1p-25;
    if (fits || ++bad > 3) continue;
    CAPTURE(i, value, want[i]);
    CHECK(fits);
  }
  CHECK(bad == 0);
}

template <bool log>
void check_softmax(const SoftmaxShape& shape, std::size_t offset) {
  CAPTURE(shape.outer, shape.n, shape.inner, offset, log);
  const auto count = static_cast<std::size_t>(shape.outer * shape.n * shape.inner);
  Values x = numbers(static_cast<std::int64_t>(count), 1, 8), y(count), dx(count);
  const Values dy = numbers(static_cast<std::int64_t>(count), 9, 2);
  if (count > 40) x[40] = -kInfinity;
  (log ? log_softmax : softmax)(kCPU, DType::f64, {shape, x.data(), y.data()});
  const Values rounded_y = rounded<Half>(y);
  (log ? log_softmax_backward : softmax_backward)(kCPU, DType::f64,
                                                  {shape, rounded_y.data(), dy.data(), dx.data()});
  in_each_order([&] {
    const Block<Half> in(x, offset), out(count, offset), in_y(rounded_y, offset), in_dy(dy, offset),
        gradient(count, offset);
    gpu::launch_softmax_f16_forward<log>({}, {shape, in.data(), out.data()});
    check_half("y", out, y, 0.1);
    gpu::launch_softmax_f16_backward<log>({}, {shape, in_y.data(), in_dy.data(), gradient.data()});
    check_half("dx", gradient, dx, 0.1);
  });
}
void check_both(const SoftmaxShape& shape, std::size_t offset = 0) {
  check_softmax<false>(shape, offset);
  check_softmax<true>(shape, offset);
}

}  // namespace

TEST_CASE("f16 softmax kernels: rows in registers, streamed rows and columns give the CPU's values") {
  for (const std::int64_t n : {1, 7, 255, 256, 257, 264, 4095, 4096}) check_both({2, n, 1});
  for (const std::int64_t n : {4097, 4104}) check_both({1, n, 1});
  check_both({3, 64, 1}, 1);
  for (const std::int64_t inner : {2, 33}) check_both({2, 19, inner});
  cuda_emulator::take_launches();
  check_both({0, 3, 1});
  CHECK(cuda_emulator::take_launches().empty());
}
