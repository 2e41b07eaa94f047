#include "tapestry/kernels/cuda/norm_group.cuh"

namespace tapestry::kernels::cuda {
namespace {

const bool norm_group_filled = for_types<float, Half, BFloat16>([]<class T>() {
  group_norm.set(DeviceType::cuda, dtype_of<T>, &launch_group_norm<T>);
  group_norm_backward.set(DeviceType::cuda, dtype_of<T>, &launch_group_norm_backward<T>);
});

}  // namespace
}  // namespace tapestry::kernels::cuda
