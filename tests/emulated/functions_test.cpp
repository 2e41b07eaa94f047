// Tests the functions that kernels approximate, over their whole range. tests/device covers the values of all
// other functions.
#include "tapestry/kernels/cuda/functions.cuh"

#include "tests/emulated/elementwise.h"
#include "tests/emulated/values.h"

using namespace tapestry;
namespace gpu = tapestry::kernels::cuda;
using namespace tapestry::kernels;
using namespace emulated;

namespace {

/// Numbers in [-4, 4), and extremes if `special`.
Tensor values(std::int64_t n, unsigned salt, DType dtype, bool special = true) {
  const float specials[] = {0.0f, -0.0f, 1.0f,    -1.0f, INFINITY, -INFINITY,
                            NAN,  1e30f, -1e-30f, 88.0f, -88.0f};
  std::vector<float> v(static_cast<std::size_t>(n));
  Random random(salt);
  for (float& x : v) {
    const std::uint32_t bits = random();
    x = (static_cast<float>(bits >> 16) - 32768) / 8192;
    if (special && (bits >> 8) % 4 == 0) x = specials[(bits >> 10) % std::size(specials)];
  }
  return tensor(v).to(dtype);
}

template <class Row, class T>
void check_unary(const Tolerance& error) {
  CAPTURE(Row::kSlotName.text, dtype_name(dtype_of<T>));
  const Tensor out = zeros({1003}, dtype_of<T>), x = values(1003, 1, dtype_of<T>);
  compare<2>(
      out, {&out, &x}, error, [&](const Elementwise<2>& e) { slot<Row>(kCPU, dtype_of<T>, e); },
      [&](const Elementwise<2>& e) { gpu::launch_pointwise<Row, T>({}, e); });
}
template <class F, class T>
void check_gradient(const Tolerance& error) {
  using Row = GradientOf<F>;
  CAPTURE(Row::kSlotName.text, dtype_name(dtype_of<T>));
  const Tensor out = zeros({507}, dtype_of<T>), dy = values(507, 3, dtype_of<T>, false),
               x = values(507, 4, dtype_of<T>, false);
  compare<3>(
      out, {&out, &dy, &x}, error, [&](const Elementwise<3>& e) { slot<Row>(kCPU, dtype_of<T>, e); },
      [&](const Elementwise<3>& e) { gpu::launch_pointwise<Row, T>({}, e); });
}

/// The tolerance in unit roundoffs: `of_f32` for f32, and 2 for bf16, because two f32 results that differ in
/// the last bit may round to different bf16 numbers.
template <class T>
double units(double of_f32) {
  return std::is_same_v<T, float> ? of_f32 : 2;
}

}  // namespace

TEST_CASE("elementwise kernels: approximated functions are within a few roundings of the CPU's") {
  for_types<float, BFloat16>([]<class T>() {
    check_unary<Sigmoid, T>(units<T>(8));
    check_unary<Silu, T>(units<T>(8));
    // In the tails, gelu is proportional to exp(-x^2 / 2). The exponential amplifies the rounding error of
    // x^2 / 2, so the tolerance is larger.
    check_unary<Gelu, T>(units<T>(64));
    check_unary<GeluTanh, T>(units<T>(64));
  });
}

TEST_CASE(
    "elementwise kernels: gradients of approximated functions are within a few roundings of the CPU's") {
  for_types<float, BFloat16>([]<class T>() {
    // Near a zero of the gradient its terms cancel, but their errors remain, so the tolerance has an absolute
    // part. In bf16 the approximation of Phi has a relative error of 1e-4, which dy amplifies by up to 4.
    const double absolute = std::is_same_v<T, float> ? 64 : 0x1p24 * 1e-4;
    check_gradient<Silu, T>({units<T>(8), absolute});
    check_gradient<Gelu, T>({units<T>(8), absolute});
    check_gradient<GeluTanh, T>({units<T>(8), absolute});
  });
}
