#include "tapestry/kernels/cuda/softmax_f16.cuh"

namespace tapestry::kernels::cuda {
namespace {

const bool softmax_f16_filled = [] {
  constexpr DeviceType device = DeviceType::cuda;
  softmax.set(device, DType::f16, &launch_softmax_f16_forward<false>);
  log_softmax.set(device, DType::f16, &launch_softmax_f16_forward<true>);
  softmax_backward.set(device, DType::f16, &launch_softmax_f16_backward<false>);
  log_softmax_backward.set(device, DType::f16, &launch_softmax_f16_backward<true>);
  return true;
}();

}  // namespace
}  // namespace tapestry::kernels::cuda
