#include "tapestry/kernels/cuda/optim.cuh"

namespace tapestry::kernels::cuda {
namespace {

const bool filled = [] {
  sgd_step.set(DeviceType::cuda, DType::f32, [](const SgdArgs& a) { launch_sgd(a, kernel_stream()); });
  adam_step.set(DeviceType::cuda, DType::f32, [](const AdamArgs& a) { launch_adam(a, kernel_stream()); });
  return true;
}();

}  // namespace
}  // namespace tapestry::kernels::cuda
