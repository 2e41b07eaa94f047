#include "tapestry/kernels/cuda/resample.cuh"

namespace tapestry::kernels::cuda {
namespace {

const bool resample_filled = for_types<float, BFloat16>(
    []<class T>() { resample.set(DeviceType::cuda, dtype_of<T>, &launch_resample<T>); });

}  // namespace
}  // namespace tapestry::kernels::cuda
