#include "tapestry/kernels/cuda/rope.cuh"

namespace tapestry::kernels::cuda {
namespace {

const bool rope_filled = for_types<float, Half, BFloat16>(
    []<class T>() { rope.set(DeviceType::cuda, dtype_of<T>, &launch_rope<T>); });

}  // namespace
}  // namespace tapestry::kernels::cuda
