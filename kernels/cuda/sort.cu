#include "tapestry/kernels/cuda/sort.cuh"

namespace tapestry::kernels::cuda {
namespace {

template <class T>
void fill_sorts(DType dtype = dtype_of<T>) {
  sort.set(kDevice, dtype, &launch_sort<T>);
  kthvalue.set(kDevice, dtype, &launch_kthvalue<T>);
}

const bool sort_filled = [] {
  for_types<float, BFloat16, std::int64_t, std::int32_t, std::uint8_t>([]<class T>() { fill_sorts<T>(); });
  fill_sorts<std::uint8_t>(DType::boolean);
  for_types<float, BFloat16, std::int64_t>([]<class T>() { put.set(kDevice, dtype_of<T>, &launch_put<T>); });
  return true;
}();

}  // namespace
}  // namespace tapestry::kernels::cuda
