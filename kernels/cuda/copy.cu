#include "tapestry/kernels/cuda/copy.cuh"

namespace tapestry::kernels::cuda {
namespace {

const bool copy_filled = for_types<float, double, Half, BFloat16, std::int64_t, std::int32_t, std::uint8_t,
                                   bool, std::int16_t, std::int8_t, std::uint16_t>([]<class T>() {
  copy.set(DeviceType::cuda, dtype_of<T>, &launch_copy<T>);
  fill.set(DeviceType::cuda, dtype_of<T>, &launch_fill<T>);
});

}  // namespace
}  // namespace tapestry::kernels::cuda
