#include "tapestry/kernels/cuda/norm_batch.cuh"

namespace tapestry::kernels::cuda {
namespace {

const bool norm_batch_filled = for_types<float, Half, BFloat16>([]<class T>() {
  batch_norm_stats.set(DeviceType::cuda, dtype_of<T>, &launch_batch_norm_stats<T>);
  batch_norm.set(DeviceType::cuda, dtype_of<T>, &launch_batch_norm<T>);
  batch_norm_backward.set(DeviceType::cuda, dtype_of<T>, &launch_batch_norm_backward<T>);
});

}  // namespace
}  // namespace tapestry::kernels::cuda
