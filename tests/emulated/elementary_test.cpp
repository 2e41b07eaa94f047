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

template <class List, class T>
void check_values() {
  for_rows_of(List(), []<class Row>() {
    for (const int layout : {0, 5}) {
      CAPTURE(Row::kSlotName.text, dtype_name(dtype_of<T>), layout);
      const Tensor out = zeros({507}, dtype_of<T>), x = laid_out(values(507, 1, dtype_of<T>), layout);
      // The error of erfinv in f32 is 4e-7. Results that differ by a rounding of f32 may round to different
      // bf16 numbers: 2 units of bf16.
      const double units = std::is_same_v<T, BFloat16> ? 2 : std::is_same_v<Row, Erfinv> ? 16 : 10;
      compare<2>(
          out, {&out, &x}, units, [&](const Elementwise<2>& e) { slot<Row>(kCPU, dtype_of<T>, e); },
          [&](const Elementwise<2>& e) { gpu::launch_selected<List, Row, T>({}, e); });
    }
  });
}
template <class List, class T>
void check_gradients() {
  for_rows_of(List(), []<class Row>() {
    CAPTURE(Row::kSlotName.text, dtype_name(dtype_of<T>));
    const Tensor out = zeros({507}, dtype_of<T>), dy = tensor(numbers(507, 3, 2)).to(dtype_of<T>),
                 x = tensor(numbers(507, 4, 1)).to(dtype_of<T>);
    compare<3>(
        out, {&out, &dy, &x}, std::is_same_v<T, BFloat16> ? 2 : 16,
        [&](const Elementwise<3>& e) { slot<Row>(kCPU, dtype_of<T>, e); },
        [&](const Elementwise<3>& e) { gpu::launch_selected<List, Row, T>({}, e); });
  });
}

}  // namespace

TEST_CASE("elementary kernels: values are within a few roundings of the CPU's") {
  check_values<Elementary, float>();
  check_values<Elementary, BFloat16>();
}

TEST_CASE("elementary kernels: gradients are within a few roundings of the CPU's") {
  check_gradients<gpu::ElementaryGradients, float>();
  check_gradients<gpu::ElementaryGradients, BFloat16>();
}
