// Gradients of arithmetic against the CPU's kernels.
#include "tapestry/kernels/cuda/gradients.cuh"

#include "tests/emulated/elementwise.h"

using namespace tapestry;
namespace gpu = tapestry::kernels::cuda;
using kernels::TernarySlot, kernels::for_types;
using namespace emulated;

namespace {

/// Numbers in (-4, 4), of which some meet: equal ones, zeros, infinities and NaN.
Tensor values(const Shape& sizes, unsigned salt, DType dtype) {
  const float specials[] = {0.0f, -0.0f, 1.0f, 2.0f, -1.5f, INFINITY, -INFINITY, NAN};
  std::vector<float> v(static_cast<std::size_t>(sizes.numel()));
  std::uint32_t state = salt * 7919 + 99;
  for (float& x : v) {
    state = state * 1664525u + 1013904223u;
    x = (static_cast<float>(state >> 16) - 32768) / 8192;
    if ((state >> 8) % 3 == 0) x = specials[(state >> 10) % std::size(specials)];
  }
  return tensor(v, sizes).to(dtype);
}

template <class T, class F>
void check_ternary(const TernarySlot& slot, double units) {
  const auto check = [&](const Shape& sizes, int a_layout, int b_layout) {
    const Tensor out = zeros(sizes, dtype_of<T>), dy = values(sizes, 1, dtype_of<T>),
                 a = laid_out(values(sizes, 2, dtype_of<T>), a_layout),
                 b = laid_out(values(sizes, 3, dtype_of<T>), b_layout);
    CAPTURE(slot.name(), dtype_name(dtype_of<T>), a_layout, b_layout);
    compare<4>(
        out, {&out, &dy, &a, &b}, units, [&](const Elementwise<4>& e) { slot(kCPU, dtype_of<T>, e); },
        [&](const Elementwise<4>& e) { gpu::launch_ternary<T, F>(e, nullptr); });
  };
  check({507}, 0, 0);
  check({4, 16}, 3, 0);
  check({4, 16}, 0, 6);
  check({5, 7}, 1, 2);
}

/// In bf16 two results that differ by a rounding of f32 may round apart: 2 units of bf16.
template <class T>
double units(double of_f32) {
  return std::is_same_v<T, float> ? of_f32 : of_f32 > 0 ? 2 : 0;
}

}  // namespace

TEST_CASE("gradient kernels: division, powers, the larger and the smaller") {
  for_types<float, BFloat16>([]<class T>() {
    check_ternary<T, gpu::DivBackward>(kernels::div_backward, 0);
    check_ternary<T, gpu::PowBackwardBase>(kernels::pow_backward_base, units<T>(8));
    check_ternary<T, gpu::PowBackwardExponent>(kernels::pow_backward_exponent, units<T>(8));
    check_ternary<T, gpu::MaximumBackward>(kernels::maximum_backward, 0);
    check_ternary<T, gpu::MinimumBackward>(kernels::minimum_backward, 0);
  });
}

TEST_CASE("gradient kernels: a power with a number as exponent") {
  for_types<float, BFloat16>([]<class T>() {
    for (const double s : {0.0, 1.0, 2.0, 3.0, -1.0, 0.5, -2.5})
      for (const int layout : {0, 1}) {
        const Tensor out = zeros({9, 23}, dtype_of<T>), dy = values({9, 23}, 4, dtype_of<T>),
                     x = laid_out(values({9, 23}, 5, dtype_of<T>), layout);
        CAPTURE(s, layout);
        compare<3>(
            out, {&out, &dy, &x}, units<T>(8),
            [&](const Elementwise<3>& e) { kernels::pow_scalar_backward(kCPU, dtype_of<T>, e, s); },
            [&](const Elementwise<3>& e) { gpu::launch_pow_scalar_backward<T>(e, s, nullptr); });
      }
  });
}
