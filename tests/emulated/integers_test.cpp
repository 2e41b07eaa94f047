// Arithmetic of integers and bools against the CPU's kernels.
#include "tapestry/kernels/cuda/integers.cuh"

#include "tests/emulated/elementwise.h"

using namespace tapestry;
namespace gpu = tapestry::kernels::cuda;
using gpu::IntegerOp;
using kernels::BinarySlot, kernels::ScalarSlot, kernels::UnarySlot, kernels::for_types;
using namespace emulated;

namespace {

/// All sizes and signs of T, the extremes too.
template <class T>
Tensor values(const Shape& sizes, unsigned salt) {
  using Limits = std::numeric_limits<T>;
  const T some[] = {
      0, 1, T(-1), 2, 3, Limits::max(), Limits::lowest(), T(Limits::max() - 1), T(Limits::max() / 3)};
  std::vector<std::int64_t> v(static_cast<std::size_t>(sizes.numel()));
  std::uint32_t state = salt * 7919 + 99;
  for (std::int64_t& x : v) {
    state = state * 1664525u + 1013904223u;
    x = static_cast<std::int64_t>((state >> 8) % 2 ? some[(state >> 16) % std::size(some)]
                                                   : T((state >> 16) % 9));
  }
  return tensor(v, sizes).to(dtype_of<T>);
}
Tensor flags(const Shape& sizes, unsigned salt) { return gt(values<std::int64_t>(sizes, salt), 2); }

template <class T>
void check_binary(const BinarySlot& slot, IntegerOp op, const Tensor& x, const Tensor& y) {
  for (const int layout : {0, 1, 6}) {
    const Tensor a = laid_out(x, layout), out = zeros(x.sizes(), x.dtype());
    CAPTURE(slot.name(), dtype_name(x.dtype()), layout);
    compare<3>(
        out, {&out, &a, &y}, 0, [&](const Elementwise<3>& e) { slot(kCPU, x.dtype(), e); },
        [&](const Elementwise<3>& e) { gpu::launch_integers<T>(e, op, nullptr); });
  }
}
template <class T>
void check_scalar(const ScalarSlot& slot, IntegerOp op, bool scalar_first, const Tensor& x) {
  for (const Scalar& s : {Scalar(0), Scalar(1), Scalar(3), Scalar(100), Scalar(2.75), Scalar(true)})
    for (const int layout : {0, 2}) {
      const Tensor a = laid_out(x, layout), out = zeros(x.sizes(), x.dtype());
      CAPTURE(slot.name(), dtype_name(x.dtype()), layout, s.to_double());
      const Scalar seen = x.dtype() == DType::boolean ? Scalar(gpu::convert_scalar<bool>(s)) : s;
      compare<2>(
          out, {&out, &a}, 0, [&](const Elementwise<2>& e) { slot(kCPU, x.dtype(), e, s); },
          [&](const Elementwise<2>& e) { gpu::launch_integers<T>(e, op, seen, scalar_first, nullptr); });
    }
}
template <class T>
void check_unary(const UnarySlot& slot, IntegerOp op, bool zero_first) {
  const Tensor x = values<T>({9, 23}, 1), out = zeros({9, 23}, dtype_of<T>);
  CAPTURE(slot.name(), dtype_name(dtype_of<T>));
  compare<2>(
      out, {&out, &x}, 0, [&](const Elementwise<2>& e) { slot(kCPU, dtype_of<T>, e); },
      [&](const Elementwise<2>& e) { gpu::launch_integers<T>(e, op, 0, zero_first, nullptr); });
}

}  // namespace

TEST_CASE("integer kernels: arithmetic") {
  for_types<std::int64_t, std::int32_t, std::uint8_t>([]<class T>() {
    const Tensor a = values<T>({9, 23}, 1), b = values<T>({9, 23}, 2);
    check_binary<T>(kernels::add, IntegerOp::add, a, b);
    check_binary<T>(kernels::sub, IntegerOp::sub, a, b);
    check_binary<T>(kernels::mul, IntegerOp::mul, a, b);
    check_binary<T>(kernels::pow, IntegerOp::pow, a, b);
    check_binary<T>(kernels::maximum, IntegerOp::maximum, a, b);
    check_binary<T>(kernels::minimum, IntegerOp::minimum, a, b);
    check_scalar<T>(kernels::add_scalar, IntegerOp::add, false, a);
    check_scalar<T>(kernels::mul_scalar, IntegerOp::mul, false, a);
    check_scalar<T>(kernels::pow_scalar, IntegerOp::pow, false, a);
    check_scalar<T>(kernels::rsub_scalar, IntegerOp::sub, true, a);
    check_unary<T>(kernels::neg, IntegerOp::sub, true);
    check_unary<T>(kernels::abs, IntegerOp::abs, false);
    check_unary<T>(kernels::relu, IntegerOp::maximum, false);
  });
}

TEST_CASE("integer kernels: bools are bytes of 0 and 1") {
  const Tensor a = flags({9, 23}, 1), b = flags({9, 23}, 2);
  check_binary<std::uint8_t>(kernels::add, IntegerOp::maximum, a, b);
  check_binary<std::uint8_t>(kernels::mul, IntegerOp::minimum, a, b);
  check_binary<std::uint8_t>(kernels::maximum, IntegerOp::maximum, a, b);
  check_binary<std::uint8_t>(kernels::minimum, IntegerOp::minimum, a, b);
  check_scalar<std::uint8_t>(kernels::add_scalar, IntegerOp::maximum, false, a);
  check_scalar<std::uint8_t>(kernels::mul_scalar, IntegerOp::minimum, false, a);
}

TEST_CASE("integer kernels: clamp, with either limit or both") {
  using Limit = std::optional<Scalar>;
  for_types<std::int64_t, std::int32_t, std::uint8_t>([]<class T>() {
    const Tensor x = values<T>({9, 23}, 3), out = zeros({9, 23}, dtype_of<T>);
    for (const Limit& lo : {Limit(), Limit(1), Limit(7), Limit(2.5)})
      for (const Limit& hi : {Limit(), Limit(5), Limit(3.5)}) {
        if (!lo && !hi) continue;
        compare<2>(
            out, {&out, &x}, 0,
            [&](const Elementwise<2>& e) { kernels::clamp(kCPU, dtype_of<T>, e, lo, hi); },
            [&](const Elementwise<2>& e) { gpu::launch_integer_clamp<T>(e, lo, hi, nullptr); });
      }
  });
}
