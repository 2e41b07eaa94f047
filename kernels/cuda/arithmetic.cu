#include "tapestry/kernels/cuda/arithmetic.cuh"

namespace tapestry::kernels::cuda {
namespace {

constexpr DeviceType kDevice = DeviceType::cuda;

const bool rows = for_rows_of(Arithmetic(), []<class Row>() { register_pointwise<Row>(); }) &&
                  for_rows_of(ArithmeticGradients(), []<class Row>() { register_pointwise<Row>(); });

const bool scalars = for_types<float, BFloat16>([]<class T>() {
  constexpr DType t = dtype_of<T>;
  add_scalar.set(kDevice, t, &launch_scalar<T, WithScalar<Add, T>>);
  mul_scalar.set(kDevice, t, &launch_scalar<T, WithScalar<Mul, T>>);
  div_scalar.set(kDevice, t, &launch_scalar<T, WithScalar<Div, T>>);
  rsub_scalar.set(kDevice, t, &launch_scalar<T, ScalarWith<Sub, T>>);
  rdiv_scalar.set(kDevice, t, &launch_scalar<T, ScalarWith<Div, T>>);
  pow_scalar.set(kDevice, t, &launch_scalar<T, WithScalar<PowScalar, T>>);
  pow_scalar_backward.set(kDevice, t, &launch_pow_scalar_backward<T>);
});

const bool integers = [] {
  for_types<std::int64_t, std::int32_t, std::uint8_t>([]<class T>() {
    constexpr DType t = dtype_of<T>;
    slot<Add>.set(kDevice, t, &launch_integers<T, IntegerOp::add>);
    slot<Sub>.set(kDevice, t, &launch_integers<T, IntegerOp::sub>);
    slot<Mul>.set(kDevice, t, &launch_integers<T, IntegerOp::mul>);
    slot<Pow>.set(kDevice, t, &launch_integers<T, IntegerOp::pow>);
    slot<Maximum>.set(kDevice, t, &launch_integers<T, IntegerOp::maximum>);
    slot<Minimum>.set(kDevice, t, &launch_integers<T, IntegerOp::minimum>);
    add_scalar.set(kDevice, t, &launch_integers<T, IntegerOp::add>);
    mul_scalar.set(kDevice, t, &launch_integers<T, IntegerOp::mul>);
    pow_scalar.set(kDevice, t, &launch_integers<T, IntegerOp::pow>);
    rsub_scalar.set(kDevice, t, &launch_integers<T, IntegerOp::sub, true>);
    slot<Neg>.set(kDevice, t, &launch_integers<T, IntegerOp::sub, true>);
    slot<Abs>.set(kDevice, t, &launch_integers<T, IntegerOp::abs>);
    slot<Relu>.set(kDevice, t, &launch_integers<T, IntegerOp::maximum>);
    clamp.set(kDevice, t, &launch_integer_clamp<T>);
  });
  // Inside a template: nvcc 13 gives a variable template that is used elsewhere hidden visibility, and the
  // library would then not export the slot.
  for_types<std::uint8_t>([]<class Byte>() {
    constexpr DType t = DType::boolean;
    slot<Add>.set(kDevice, t, &launch_integers<Byte, IntegerOp::maximum>);
    slot<Mul>.set(kDevice, t, &launch_integers<Byte, IntegerOp::minimum>);
    slot<Maximum>.set(kDevice, t, &launch_integers<Byte, IntegerOp::maximum>);
    slot<Minimum>.set(kDevice, t, &launch_integers<Byte, IntegerOp::minimum>);
    add_scalar.set(kDevice, t, &launch_integers<Byte, IntegerOp::maximum, false, bool>);
    mul_scalar.set(kDevice, t, &launch_integers<Byte, IntegerOp::minimum, false, bool>);
  });
  return true;
}();

}  // namespace
}  // namespace tapestry::kernels::cuda
