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

// Results that differ by a rounding of f32 may round to different bf16 numbers: 2 units of bf16.
// Near its zeros, digamma is the difference of two larger numbers, of which roundings remain.
constexpr double kCancels = 1 << 14;
template <class T>
double units(double of_f32) {
  return std::is_same_v<T, float> ? of_f32 : 2;
}

}  // namespace

TEST_CASE("elementary kernels: values are within a few roundings of the CPU's") {
  for_types<float, BFloat16>([]<class T>() {
    for_rows_of(Elementary(), []<class Row>() {
      // The error of erfinv in f32 is 4e-7. That of erfc grows with x^2 <= 100, whose rounding exp()
      // amplifies.
      check_value(slot<Row>, &gpu::launch_selected<Elementary, Row, T>, dtype_of<T>,
                  units<T>(std::is_same_v<Row, Digamma>  ? kCancels
                           : std::is_same_v<Row, Erfinv> ? 16
                           : std::is_same_v<Row, Erfc>   ? 256
                                                         : 10));
    });
  });
}

TEST_CASE("elementary kernels: gradients are within a few roundings of the CPU's") {
  using List = gpu::ElementaryGradients;
  for_types<float, BFloat16>([]<class T>() {
    for_rows_of(List(), []<class Row>() {
      check_gradient(slot<Row>, &gpu::launch_selected<List, Row, T>, dtype_of<T>,
                     units<T>(std::is_same_v<Row, GradientOf<Lgamma>> ? kCancels : 16));
    });
  });
}
