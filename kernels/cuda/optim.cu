#include "tapestry/kernels/cuda/optim.cuh"

namespace tapestry::kernels::cuda {
namespace {

const bool optim_filled = [] {
  sgd_step.set(DeviceType::cuda, DType::f32, &launch_sgd<>);
  adam_step.set(DeviceType::cuda, DType::f32, &launch_adam<>);
  return true;
}();

}  // namespace
}  // namespace tapestry::kernels::cuda
