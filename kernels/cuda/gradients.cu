#include "tapestry/kernels/cuda/gradients.cuh"

namespace tapestry::kernels::cuda {
namespace {

constexpr DeviceType kDevice = DeviceType::cuda;

template <class T, class F>
void ternary(const Elementwise<4>& e) {
  launch_ternary<T, F>(e, kernel_stream());
}
template <class T>
void pow_scalar_backward_kernel(const Elementwise<3>& e, Scalar s) {
  launch_pow_scalar_backward<T>(e, s, kernel_stream());
}

const bool filled = for_types<float, BFloat16>([]<class T>() {
  constexpr DType t = dtype_of<T>;
  div_backward.set(kDevice, t, &ternary<T, DivBackward>);
  pow_backward_base.set(kDevice, t, &ternary<T, PowBackwardBase>);
  pow_backward_exponent.set(kDevice, t, &ternary<T, PowBackwardExponent>);
  maximum_backward.set(kDevice, t, &ternary<T, MaximumBackward>);
  minimum_backward.set(kDevice, t, &ternary<T, MinimumBackward>);
  pow_scalar_backward.set(kDevice, t, &pow_scalar_backward_kernel<T>);
});

}  // namespace
}  // namespace tapestry::kernels::cuda
