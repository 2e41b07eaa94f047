#include "tapestry/kernels/cuda/functions.cuh"

namespace tapestry::kernels::cuda {
namespace {

constexpr DeviceType kDevice = DeviceType::cuda;

template <class T, class F>
void unary(const Elementwise<2>& e) {
  launch_unary<T, F>(e, kernel_stream());
}
template <class T, class F>
void binary(const Elementwise<3>& e) {
  launch_binary<T, F>(e, kernel_stream());
}
template <class T, class F>
void with_scalar(const Elementwise<2>& e, Scalar s) {
  launch_scalar<T, F>(e, s, kernel_stream());
}
template <class T>
void clamp_kernel(const Elementwise<2>& e, std::optional<Scalar> lo, std::optional<Scalar> hi) {
  launch_clamp<T>(e, lo, hi, kernel_stream());
}
template <class T>
void clamp_backward_kernel(const Elementwise<3>& e, std::optional<Scalar> lo, std::optional<Scalar> hi) {
  launch_clamp_backward<T>(e, lo, hi, kernel_stream());
}

const bool filled = for_types<float, BFloat16>([]<class T>() {
  constexpr DType t = dtype_of<T>;
  add.set(kDevice, t, &binary<T, Add>);
  sub.set(kDevice, t, &binary<T, Sub>);
  mul.set(kDevice, t, &binary<T, Mul>);
  div.set(kDevice, t, &binary<T, Div>);
  maximum.set(kDevice, t, &binary<T, Maximum>);
  minimum.set(kDevice, t, &binary<T, Minimum>);
  pow.set(kDevice, t, &binary<T, Pow>);
  add_scalar.set(kDevice, t, &with_scalar<T, WithScalar<Add>>);
  mul_scalar.set(kDevice, t, &with_scalar<T, WithScalar<Mul>>);
  div_scalar.set(kDevice, t, &with_scalar<T, WithScalar<Div>>);
  rsub_scalar.set(kDevice, t, &with_scalar<T, ScalarWith<Sub>>);
  rdiv_scalar.set(kDevice, t, &with_scalar<T, ScalarWith<Div>>);
  pow_scalar.set(kDevice, t, &with_scalar<T, PowScalar>);

  neg.set(kDevice, t, &unary<T, Neg>);
  abs.set(kDevice, t, &unary<T, Abs>);
  relu.set(kDevice, t, &unary<T, Relu>);
  exp.set(kDevice, t, &unary<T, Exp>);
  log.set(kDevice, t, &unary<T, Log>);
  sqrt.set(kDevice, t, &unary<T, Sqrt>);
  rsqrt.set(kDevice, t, &unary<T, Rsqrt>);
  tanh.set(kDevice, t, &unary<T, Tanh>);
  sigmoid.set(kDevice, t, &unary<T, Sigmoid<T>>);
  silu.set(kDevice, t, &unary<T, Silu<T>>);
  gelu.set(kDevice, t, &unary<T, Gelu<T>>);
  gelu_tanh.set(kDevice, t, &unary<T, GeluTanh<T>>);
  clamp.set(kDevice, t, &clamp_kernel<T>);

  relu_backward.set(kDevice, t, &binary<T, ReluBackward>);
  tanh_backward.set(kDevice, t, &binary<T, TanhBackward>);
  sigmoid_backward.set(kDevice, t, &binary<T, SigmoidBackward>);
  sqrt_backward.set(kDevice, t, &binary<T, SqrtBackward>);
  rsqrt_backward.set(kDevice, t, &binary<T, RsqrtBackward>);
  silu_backward.set(kDevice, t, &binary<T, SiluBackward<T>>);
  gelu_backward.set(kDevice, t, &binary<T, GeluBackward<T>>);
  gelu_tanh_backward.set(kDevice, t, &binary<T, GeluTanhBackward<T>>);
  abs_backward.set(kDevice, t, &binary<T, AbsBackward>);
  clamp_backward.set(kDevice, t, &clamp_backward_kernel<T>);
});

}  // namespace
}  // namespace tapestry::kernels::cuda
