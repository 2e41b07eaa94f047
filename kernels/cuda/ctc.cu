#include "tapestry/kernels/cuda/ctc.cuh"

namespace tapestry::kernels::cuda {
namespace {

const bool ctc_filled = [] {
  ctc_loss.set(DeviceType::cuda, DType::f32, &launch_ctc_loss<>);
  ctc_loss_backward.set(DeviceType::cuda, DType::f32, &launch_ctc_loss_backward<>);
  return true;
}();

}  // namespace
}  // namespace tapestry::kernels::cuda
