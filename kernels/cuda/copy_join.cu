#include "tapestry/kernels/cuda/copy_join.cuh"

namespace tapestry::kernels::cuda {
namespace {

const bool copy_join_filled = [] {
  join.set(DeviceType::cuda, DType::u8, &launch_join);
  return true;
}();

}  // namespace
}  // namespace tapestry::kernels::cuda
