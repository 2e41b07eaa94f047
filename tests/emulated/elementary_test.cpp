// Tests that the shared kernels of the elementary functions run the selected function, for values from the
// whole range of f32 and bf16, with vector and with scalar accesses. tests/device covers ordinary values.
#include "tapestry/kernels/cuda/elementary.cuh"

#include <bit>

#include "tests/emulated/elementwise.h"
#include "tests/emulated/values.h"

using namespace tapestry;
namespace gpu = tapestry::kernels::cuda;
using namespace tapestry::kernels;
using namespace emulated;

namespace {

/// Random bit patterns: numbers of all magnitudes, infinities and NaN. Half of them are small, as most
/// functions are defined there.
Tensor values(std::int64_t n, unsigned salt, DType dtype) {
  std::vector<float> v(static_cast<std::size_t>(n));
  Random random(salt);
  for (float& x : v) {
    const std::uint32_t bits = random();
    x = (bits >> 20) % 2 ? std::bit_cast<float>(random())
                         : (static_cast<float>(bits >> 8) - 0x1p23f) * 0x1p-22f;
  }
  return tensor(v).to(dtype);
}

// The checks take slots and launch functions, so that they are compiled once and not for each row.
template <int kOperands>
using Launch = void (*)(const LaunchContext&, const Elementwise<kOperands>&);

void check_value(const Slot<Elementwise<2>>& row, Launch<2> launch, DType t, double units) {
  for (const int layout : {0, 5}) {
    CAPTURE(row.name(), dtype_name(t), layout);
    const Tensor out = zeros({507}, t), x = laid_out(values(507, 1, t), layout);
    compare<2>(
        out, {&out, &x}, units, [&](const Elementwise<2>& e) { row(kCPU, t, e); },
        [&](const Elementwise<2>& e) { launch({}, e); });
  }
}
void check_gradient(const Slot<Elementwise<3>>& row, Launch<3> launch, DType t, double units) {
  CAPTURE(row.name(), dtype_name(t));
  const Tensor out = zeros({507}, t), dy = tensor(numbers(507, 3, 2)).to(t),
               x = tensor(numbers(507, 4, 1)).to(t);
  compare<3>(
      out, {&out, &dy, &x}, units, [&](const Elementwise<3>& e) { row(kCPU, t, e); },
      [&](const Elementwise<3>& e) { launch({}, e); });
}

/// Compares psi(x) dy, which launch() computes, with f64. For x < 0 psi(x) is psi(1 - x) - pi / tan(pi x),
/// which cancels near its zeros: the condition number |x psi'(x) / psi(x)| has no bound there. Therefore the
/// allowed error is 8 units of |psi(1 - x)| + |pi / tan(pi x)|, of which the f32 formula was measured to lose
/// at most 6.4 (tests/autograd/accuracy_test.cpp). For x > 0 it is 16 units of psi(x).
template <int kOperands>
void check_digamma(Launch<kOperands> launch, DType t) {
  CAPTURE(kOperands, dtype_name(t));
  const Tensor x = values(507, 6, t), dy = kOperands == 3 ? tensor(numbers(507, 3, 2)).to(t) : ones({507}, t);
  const Tensor out = zeros({507}, t), at = x.to(kFloat64), factor = dy.to(kFloat64);
  const Tensor want = digamma(at), above = digamma(1 - at);
  const double unit = t == DType::bf16 ? 0x1p-8 : 0x1p-24;
  in_each_order([&] {
    if constexpr (kOperands == 2) launch({}, plan<2>({&out, &x}));
    else launch({}, plan<3>({&out, &dy, &x}));
    const Tensor got = out.to(kFloat64);
    for (std::int64_t i = 0; i < 507; ++i) {
      const double d = factor.data<double>()[i], exact = want.data<double>()[i] * d;
      const double psi = above.data<double>()[i] * d, y = got.data<double>()[i], point = at.data<double>()[i];
      const double f32_error =
          0x1p-24 * (point < 0 ? 8 * (std::abs(psi) + std::abs(exact - psi)) : 16 * std::abs(exact));
      CAPTURE(i, point, y, exact);
      if (std::isnan(exact)) CHECK(std::isnan(y));
      else if (std::abs(exact) < 3e38)
        CHECK(std::abs(y - exact) <= f32_error + unit * std::abs(exact) + 0x1p-126);
    }
  });
}

// Results that differ by a rounding of f32 may round to different bf16 numbers: 2 units of bf16.
template <class T>
double units(double of_f32) {
  return std::is_same_v<T, float> ? of_f32 : 2;
}

}  // namespace

TEST_CASE("elementary kernels: values are within a few roundings of the CPU's") {
  for_types<float, BFloat16>([]<class T>() {
    for_rows_of(Elementary(), []<class Row>() {
      if constexpr (std::is_same_v<Row, Digamma>)
        return check_digamma<2>(&gpu::launch_selected<Elementary, Row, T>, dtype_of<T>);
      // The error of erfinv in f32 is 4e-7. The CPU's erfc was measured to have an error of at most 6 ulp,
      // which is 12 units.
      constexpr bool rough = std::is_same_v<Row, Erfinv> || std::is_same_v<Row, Erfc>;
      check_value(slot<Row>, &gpu::launch_selected<Elementary, Row, T>, dtype_of<T>,
                  units<T>(rough ? 16 : 10));
    });
  });
}

TEST_CASE("elementary kernels: gradients are within a few roundings of the CPU's") {
  using List = gpu::ElementaryGradients;
  for_types<float, BFloat16>([]<class T>() {
    for_rows_of(List(), []<class Row>() {
      if constexpr (std::is_same_v<Row, GradientOf<Lgamma>>)
        return check_digamma<3>(&gpu::launch_selected<List, Row, T>, dtype_of<T>);
      check_gradient(slot<Row>, &gpu::launch_selected<List, Row, T>, dtype_of<T>, units<T>(16));
    });
  });
}
