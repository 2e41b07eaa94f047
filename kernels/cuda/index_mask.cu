#include "tapestry/kernels/cuda/index_mask.cuh"

namespace tapestry::kernels::cuda {
namespace {

const bool index_mask_filled = [] {
  mask_starts.set(DeviceType::cuda, DType::boolean, &launch_mask_starts<>);
  mask_coordinates.set(DeviceType::cuda, DType::boolean, &launch_mask_coordinates<>);
  return true;
}();

}  // namespace
}  // namespace tapestry::kernels::cuda
