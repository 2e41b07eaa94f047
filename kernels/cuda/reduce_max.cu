#include "tapestry/kernels/cuda/reduce_max.cuh"

namespace tapestry::kernels::cuda {

// These kernels are instantiated for reduce.cu, which uses them for norms.
template void launch_extreme<float>(const Reduction&, bool, bool, std::int64_t*, const LaunchContext&);
template void launch_extreme<BFloat16>(const Reduction&, bool, bool, std::int64_t*, const LaunchContext&);

namespace {

template <class T, bool largest>
void extreme(const LaunchContext& context, const ExtremeArgs& a) {
  launch_extreme<T>(a.reduction, largest, false, a.indices, context);
}
template <class T>
void fill_extremes(DType dtype = dtype_of<T>) {
  max.set(DeviceType::cuda, dtype, &extreme<T, true>);
  min.set(DeviceType::cuda, dtype, &extreme<T, false>);
}

const bool reduce_max_filled = [] {
  for_types<float, BFloat16, std::int64_t, std::int32_t, std::uint8_t>([]<class T>() { fill_extremes<T>(); });
  fill_extremes<std::uint8_t>(DType::boolean);
  return true;
}();

}  // namespace
}  // namespace tapestry::kernels::cuda
