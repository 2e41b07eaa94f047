#include "tapestry/kernels/cuda/index.cuh"

namespace tapestry::kernels::cuda {
namespace {

const bool index_filled = [] {
  for_types<float, double, Half, BFloat16, std::int64_t, std::int32_t, std::uint8_t, bool>(
      []<class T>() { index_select.set(kDevice, dtype_of<T>, &launch_index_select<T>); });
  for_types<float, BFloat16>([]<class T>() {
    index_add.set(kDevice, dtype_of<T>, &launch_index_add<T>);
    scatter.set(kDevice, dtype_of<T>, &launch_scatter<T>);
  });
  return true;
}();

}  // namespace
}  // namespace tapestry::kernels::cuda
