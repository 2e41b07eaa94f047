#include "tapestry/kernels/cuda/conv_tensor_launch.cuh"
#include "tapestry/kernels/cuda/vendor/conv.h"

namespace tapestry::kernels::cuda {

// These kernels are compiled once, in matmul_column_sum.cu.
extern template void launch_column_sum<Half>(const LaunchContext&, const ColumnSumArgs&);
extern template void launch_column_sum<BFloat16>(const LaunchContext&, const ColumnSumArgs&);

namespace {

template <class T>
void conv2d_forward_16(const LaunchContext& context, const Conv2dArgs& a) {
  launch_conv2d_16<T>(context, a, kConvInF32);
}
template <class T>
void conv2d_backward_input_16(const LaunchContext& context, const Conv2dBackwardInputArgs& a) {
  launch_conv2d_backward_input_16<T>(context, a, kConvInF32);
}
template <class T>
void conv2d_backward_weight_16(const LaunchContext& context, const Conv2dBackwardWeightArgs& a) {
  launch_conv2d_backward_weight_16<T>(context, a, kConvInF32);
}

const bool conv_16_filled = for_types<Half, BFloat16>([]<class T>() {
  constexpr DType t = dtype_of<T>;
  conv2d.set(kDevice, t, &conv_by_policy<T, Conv2dArgs, &conv2d_forward_16<T>>);
  conv2d_backward_input.set(kDevice, t,
                            &conv_by_policy<T, Conv2dBackwardInputArgs, &conv2d_backward_input_16<T>>);
  conv2d_backward_weight.set(kDevice, t,
                             &conv_by_policy<T, Conv2dBackwardWeightArgs, &conv2d_backward_weight_16<T>>);
});

}  // namespace
}  // namespace tapestry::kernels::cuda
