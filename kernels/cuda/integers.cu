#include "tapestry/kernels/cuda/integers.cuh"

namespace tapestry::kernels::cuda {
namespace {

constexpr DeviceType kDevice = DeviceType::cuda;

template <class T, IntegerOp op>
void binary(const Elementwise<3>& e) {
  launch_integers<T>(e, op, kernel_stream());
}
template <class T, IntegerOp op, bool scalar_first = false>
void with_scalar(const Elementwise<2>& e, Scalar s) {
  launch_integers<T>(e, op, s, scalar_first, kernel_stream());
}
// f(x, 0), or f(0, x)
template <class T, IntegerOp op, bool zero_first = false>
void unary(const Elementwise<2>& e) {
  launch_integers<T>(e, op, 0, zero_first, kernel_stream());
}
template <class T>
void clamp_kernel(const Elementwise<2>& e, std::optional<Scalar> lo, std::optional<Scalar> hi) {
  launch_integer_clamp<T>(e, lo, hi, kernel_stream());
}
// x + s and x * s of bools.
template <IntegerOp op>
void bool_with_scalar(const Elementwise<2>& e, Scalar s) {
  launch_integers<std::uint8_t>(e, op, convert_scalar<bool>(s), false, kernel_stream());
}

const bool filled = [] {
  for_types<std::int64_t, std::int32_t, std::uint8_t>([]<class T>() {
    constexpr DType t = dtype_of<T>;
    add.set(kDevice, t, &binary<T, IntegerOp::add>);
    sub.set(kDevice, t, &binary<T, IntegerOp::sub>);
    mul.set(kDevice, t, &binary<T, IntegerOp::mul>);
    pow.set(kDevice, t, &binary<T, IntegerOp::pow>);
    maximum.set(kDevice, t, &binary<T, IntegerOp::maximum>);
    minimum.set(kDevice, t, &binary<T, IntegerOp::minimum>);
    add_scalar.set(kDevice, t, &with_scalar<T, IntegerOp::add>);
    mul_scalar.set(kDevice, t, &with_scalar<T, IntegerOp::mul>);
    pow_scalar.set(kDevice, t, &with_scalar<T, IntegerOp::pow>);
    rsub_scalar.set(kDevice, t, &with_scalar<T, IntegerOp::sub, true>);
    neg.set(kDevice, t, &unary<T, IntegerOp::sub, true>);
    abs.set(kDevice, t, &unary<T, IntegerOp::abs>);
    relu.set(kDevice, t, &unary<T, IntegerOp::maximum>);
    clamp.set(kDevice, t, &clamp_kernel<T>);
  });
  constexpr DType t = DType::boolean;
  using Byte = std::uint8_t;
  add.set(kDevice, t, &binary<Byte, IntegerOp::maximum>);
  mul.set(kDevice, t, &binary<Byte, IntegerOp::minimum>);
  maximum.set(kDevice, t, &binary<Byte, IntegerOp::maximum>);
  minimum.set(kDevice, t, &binary<Byte, IntegerOp::minimum>);
  add_scalar.set(kDevice, t, &bool_with_scalar<IntegerOp::maximum>);
  mul_scalar.set(kDevice, t, &bool_with_scalar<IntegerOp::minimum>);
  return true;
}();

}  // namespace
}  // namespace tapestry::kernels::cuda
