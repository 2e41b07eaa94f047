#include "tapestry/kernels/cuda/conv2d.cuh"

namespace tapestry::kernels::cuda {
namespace {

void forward(const Conv2d& s, const void* x, const void* weight, const void* bias, void* y) {
  launch_conv2d(s, static_cast<const float*>(x), static_cast<const float*>(weight),
                static_cast<const float*>(bias), static_cast<float*>(y), kernel_stream());
}
void backward_input(const Conv2d& s, const void* dy, const void* weight, void* dx) {
  launch_conv2d_backward_input(s, static_cast<const float*>(dy), static_cast<const float*>(weight),
                               static_cast<float*>(dx), kernel_stream());
}
void backward_weight(const Conv2d& s, const void* dy, const void* x, void* dweight, void* dbias) {
  launch_conv2d_backward_weight(s, static_cast<const float*>(dy), static_cast<const float*>(x),
                                static_cast<float*>(dweight), static_cast<float*>(dbias), kernel_stream());
}

const bool filled = [] {
  conv2d.set(DeviceType::cuda, DType::f32, &forward);
  conv2d_backward_input.set(DeviceType::cuda, DType::f32, &backward_input);
  conv2d_backward_weight.set(DeviceType::cuda, DType::f32, &backward_weight);
  return true;
}();

}  // namespace
}  // namespace tapestry::kernels::cuda
