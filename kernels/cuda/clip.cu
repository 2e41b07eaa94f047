#include "tapestry/kernels/cuda/clip.cuh"

namespace tapestry::kernels::cuda {
namespace {

const bool clip_filled = [] {
  gradient_norm.set(DeviceType::cuda, DType::f32, &launch_gradient_norm<>);
  scale_gradients.set(DeviceType::cuda, DType::f32, &launch_scale_gradients<>);
  clamp_gradients.set(DeviceType::cuda, DType::f32, &launch_clamp_gradients<>);
  return true;
}();

}  // namespace
}  // namespace tapestry::kernels::cuda
