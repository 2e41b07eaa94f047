#include "tapestry/kernels/cuda/max.cuh"

namespace tapestry::kernels::cuda {

// reduce.cu has norms of them.
template void launch_extreme<float>(const Reduce&, bool, bool, std::int64_t*, cudaStream_t);
template void launch_extreme<BFloat16>(const Reduce&, bool, bool, std::int64_t*, cudaStream_t);

namespace {

template <class T, bool largest>
void extreme(const Reduce& r, std::int64_t* indices) {
  launch_extreme<T>(r, largest, false, indices, kernel_stream());
}
template <class T>
void fill_slots(DType dtype = dtype_of<T>) {
  max.set(DeviceType::cuda, dtype, &extreme<T, true>);
  min.set(DeviceType::cuda, dtype, &extreme<T, false>);
}

const bool filled = [] {
  for_types<float, BFloat16, std::int64_t, std::int32_t, std::uint8_t>([]<class T>() { fill_slots<T>(); });
  fill_slots<std::uint8_t>(DType::boolean);
  return true;
}();

}  // namespace
}  // namespace tapestry::kernels::cuda
