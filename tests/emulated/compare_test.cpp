// Tests the isclose and masked kernels in every dtype, with vector and with scalar accesses, since
// tests/device does not cover all of these. tests/device checks all other comparisons.
#include "tapestry/kernels/cuda/compare.cuh"

#include "tests/emulated/elementwise.h"
#include "tests/emulated/values.h"

using namespace tapestry;
namespace gpu = tapestry::kernels::cuda;
using namespace tapestry::kernels;
using namespace emulated;

namespace {

/// Returns a tensor of a few different numbers, so that many elements are equal. It has infinities and NaN if
/// the dtype does.
Tensor values(const Shape& sizes, unsigned salt, DType dtype) {
  const float some[] = {0.0f, 1.0f, 2.0f, 3.5f, -0.0f, -1.0f, INFINITY, -INFINITY, NAN, 1e30f};
  const std::size_t count = is_floating(dtype) ? std::size(some) : dtype == DType::boolean ? 2 : 4;
  std::vector<float> v(static_cast<std::size_t>(sizes.numel()));
  Random random(salt);
  for (float& x : v) x = some[(random() >> 16) % count];
  return tensor(v, sizes).to(dtype);
}

struct Layouts {
  Shape sizes;
  int a, b;
};
// The kernel reads the first case in packs, and the second by single elements.
const Layouts kLayoutPairs[] = {{{507}, 0, 0}, {{5, 7}, 1, 2}};

template <class T>
void check_isclose(DType t = dtype_of<T>) {
  for (const bool equal_nan : {false, true})
    for (const Layouts& l : kLayoutPairs) {
      const Tensor out = zeros(l.sizes, DType::boolean), a = laid_out(values(l.sizes, 4, t), l.a),
                   b = laid_out(values(l.sizes, 5, t), l.b);
      CAPTURE(dtype_name(t), equal_nan, l.a, l.b);
      compare<3>(
          out, {&out, &a, &b}, 0,
          [&](const Elementwise<3>& e) {
            kernels::isclose(kCPU, t, {e, 0.5, 1, equal_nan});
          },
          [&](const Elementwise<3>& e) {
            gpu::launch_isclose<T>({}, {e, 0.5, 1, equal_nan});
          });
    }
}

}  // namespace

TEST_CASE("isclose kernels: packs and single elements give the CPU's result, also for infinities and NaN") {
  for_types<float, Half, BFloat16, std::int64_t, std::int32_t, std::uint8_t>(
      []<class T>() { check_isclose<T>(); });
  check_isclose<std::uint8_t>(DType::boolean);
}

TEST_CASE("masked kernels: packs and single elements keep or clear the selected elements") {
  for_types<float, double, Half, BFloat16, std::int64_t, std::int32_t, std::uint8_t, bool>([]<class T>() {
    constexpr DType t = dtype_of<T>;
    for (const bool keep : {true, false})
      for (const Layouts& l : kLayoutPairs) {
        const Tensor out = full(l.sizes, 1, t), condition = laid_out(values(l.sizes, 7, DType::boolean), l.b),
                     a = laid_out(values(l.sizes, 8, t), l.a);
        CAPTURE(dtype_name(t), keep, l.a, l.b);
        compare<3>(
            out, {&out, &condition, &a}, 0,
            [&](const Elementwise<3>& e) {
              kernels::masked(kCPU, t, {e, keep});
            },
            [&](const Elementwise<3>& e) {
              gpu::launch_masked<T>({}, {e, keep});
            });
      }
  });
}

TEST_CASE("comparison kernels: f16 gives the CPU's results, by packs and by single elements") {
  for (const Layouts& l : kLayoutPairs) {
    const Tensor out = zeros(l.sizes, DType::boolean), a = laid_out(values(l.sizes, 4, DType::f16), l.a),
                 b = laid_out(values(l.sizes, 5, DType::f16), l.b);
    for_rows_of(Comparisons(), [&]<class Row>() {
      CAPTURE(Row::kSlotName.text);
      compare<3>(
          out, {&out, &a, &b}, 0, [](const Elementwise<3>& e) { slot<Row>(kCPU, DType::f16, e); },
          [](const Elementwise<3>& e) { gpu::launch_compare<Row, Half>({}, e); });
      compare<2>(
          out, {&out, &a}, 0,
          [](const Elementwise<2>& e) {
            slot<WithNumber<Row, 1>>(kCPU, DType::f16, {e, {1.0}});
          },
          [](const Elementwise<2>& e) {
            gpu::launch_compare_with<Row, Half>({}, {e, {1.0}});
          });
    });
  }
}
