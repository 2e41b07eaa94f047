#include "tapestry/kernels/cuda/index_elements.cuh"

namespace tapestry::kernels::cuda {
namespace {

const bool index_elements_filled = [] {
  for_types<float, double, Half, BFloat16, std::int64_t, std::int32_t, std::uint8_t, bool>([]<class T>() {
    indexed_read.set(kDevice, dtype_of<T>, &launch_indexed_read<Bits<T>>);
    indexed_write.set(kDevice, dtype_of<T>, &launch_indexed_write<Bits<T>>);
  });
  return for_types<float, BFloat16, std::int64_t, std::int32_t, std::uint8_t>(
      []<class T>() { indexed_combine.set(kDevice, dtype_of<T>, &launch_indexed_combine<T>); });
}();

}  // namespace
}  // namespace tapestry::kernels::cuda
