// Comparisons and choices against the CPU's kernels.
#include "tapestry/kernels/cuda/compare.cuh"

#include "tests/emulated/elementwise.h"

using namespace tapestry;
namespace gpu = tapestry::kernels::cuda;
using kernels::BinarySlot, kernels::ScalarSlot, kernels::for_types;
using namespace emulated;

namespace {

/// Few different numbers, so that many are equal; negative ones, infinities and NaN where the dtype has them.
Tensor values(const Shape& sizes, unsigned salt, DType dtype) {
  const float some[] = {0.0f, 1.0f, 2.0f, 3.5f, -0.0f, -1.0f, INFINITY, -INFINITY, NAN, 1e30f};
  const std::size_t count = is_floating(dtype) ? std::size(some) : dtype == DType::boolean ? 2 : 4;
  std::vector<float> v(static_cast<std::size_t>(sizes.numel()));
  std::uint32_t state = salt * 7919 + 99;
  for (float& x : v) {
    state = state * 1664525u + 1013904223u;
    x = some[(state >> 16) % count];
  }
  return tensor(v, sizes).to(dtype);
}

struct Layouts {
  Shape sizes;
  int a, b;
};
const Layouts kPairs[] = {{{507}, 0, 0}, {{4, 16}, 3, 0}, {{4, 16}, 0, 6}, {{5, 7}, 1, 2}, {{3, 8}, 5, 0}};

template <class T>
void check_compare(DType t, const BinarySlot& slot, unsigned accepted) {
  for (const Layouts& l : kPairs) {
    const Tensor out = zeros(l.sizes, DType::boolean), a = laid_out(values(l.sizes, 1, t), l.a),
                 b = laid_out(values(l.sizes, 2, t), l.b);
    CAPTURE(slot.name(), dtype_name(t), l.a, l.b);
    compare<3>(
        out, {&out, &a, &b}, 0, [&](const Elementwise<3>& e) { slot(kCPU, t, e); },
        [&](const Elementwise<3>& e) { gpu::launch_compare<T>(e, accepted, nullptr); });
  }
}
template <class T>
void check_scalar(DType t, const ScalarSlot& slot, unsigned accepted) {
  for (const Scalar& s : {Scalar(1), Scalar(2.0), Scalar(-1), Scalar(NAN), Scalar(INFINITY), Scalar(true)}) {
    if (s.is_real() && s.to_double() - s.to_double() != 0 && !is_floating(t)) continue;
    for (const int layout : {0, 2}) {
      const Tensor out = zeros({5, 21}, DType::boolean), x = laid_out(values({5, 21}, 3, t), layout);
      CAPTURE(slot.name(), dtype_name(t), layout, s.to_double());
      compare<2>(
          out, {&out, &x}, 0, [&](const Elementwise<2>& e) { slot(kCPU, t, e, s); },
          [&](const Elementwise<2>& e) { gpu::launch_compare_scalar<T>(e, accepted, s, nullptr); });
    }
  }
}
template <class T>
void check_dtype(DType t = dtype_of<T>) {
  using namespace tapestry::kernels::cuda;
  check_compare<T>(t, kernels::eq, kEqual);
  check_compare<T>(t, kernels::ne, kLess | kGreater | kUnordered);
  check_compare<T>(t, kernels::lt, kLess);
  check_compare<T>(t, kernels::le, kLess | kEqual);
  check_scalar<T>(t, kernels::eq_scalar, kEqual);
  check_scalar<T>(t, kernels::ne_scalar, kLess | kGreater | kUnordered);
  check_scalar<T>(t, kernels::lt_scalar, kLess);
  check_scalar<T>(t, kernels::le_scalar, kLess | kEqual);
  check_scalar<T>(t, kernels::gt_scalar, kGreater);
  check_scalar<T>(t, kernels::ge_scalar, kGreater | kEqual);
  for (const bool equal_nan : {false, true})
    for (const double rtol : {0.0, 0.5}) {
      for (const Layouts& l : kPairs) {
        const Tensor out = zeros(l.sizes, DType::boolean), a = laid_out(values(l.sizes, 4, t), l.a),
                     b = laid_out(values(l.sizes, 5, t), l.b);
        CAPTURE(dtype_name(t), equal_nan, rtol, l.a, l.b);
        compare<3>(
            out, {&out, &a, &b}, 0,
            [&](const Elementwise<3>& e) { kernels::isclose(kCPU, t, e, rtol, 1, equal_nan); },
            [&](const Elementwise<3>& e) { gpu::launch_isclose<T>(e, rtol, 1, equal_nan, nullptr); });
      }
    }
}

}  // namespace

TEST_CASE("comparison kernels") {
  for_types<float, BFloat16, std::int64_t, std::int32_t, std::uint8_t>([]<class T>() { check_dtype<T>(); });
  check_dtype<std::uint8_t>(DType::boolean);
}

TEST_CASE("isnan kernel") {
  for_types<float, BFloat16>([]<class T>() {
    for (const int layout : {0, 1}) {
      const Tensor out = zeros({9, 23}, DType::boolean),
                   x = laid_out(values({9, 23}, 6, dtype_of<T>), layout);
      compare<2>(
          out, {&out, &x}, 0, [&](const Elementwise<2>& e) { kernels::isnan(kCPU, dtype_of<T>, e); },
          [&](const Elementwise<2>& e) { gpu::launch_isnan<T>(e, nullptr); });
    }
  });
}

TEST_CASE("where and masked kernels: every dtype") {
  for_types<float, double, Half, BFloat16, std::int64_t, std::int32_t, std::uint8_t, bool>([]<class T>() {
    constexpr DType t = dtype_of<T>;
    for (const Layouts& l : kPairs) {
      const Tensor out = full(l.sizes, 1, t), condition = laid_out(values(l.sizes, 7, DType::boolean), l.b),
                   a = laid_out(values(l.sizes, 8, t), l.a), b = values(l.sizes, 9, t);
      CAPTURE(dtype_name(t), l.a, l.b);
      compare<4>(
          out, {&out, &condition, &a, &b}, 0, [&](const Elementwise<4>& e) { kernels::where(kCPU, t, e); },
          [&](const Elementwise<4>& e) { gpu::launch_where<T>(e, nullptr); });
      for (const bool keep : {true, false})
        compare<3>(
            out, {&out, &condition, &a}, 0,
            [&](const Elementwise<3>& e) { kernels::masked(kCPU, t, e, keep); },
            [&](const Elementwise<3>& e) { gpu::launch_masked<T>(e, keep, nullptr); });
    }
  });
}
