#include "tapestry/kernels/cuda/reduce.cuh"

namespace tapestry::kernels::cuda {

// These kernels are compiled once, in reduce_max.cu.
extern template void launch_extreme<float>(const Reduction&, bool, bool, std::int64_t*, const LaunchContext&);
extern template void launch_extreme<BFloat16>(const Reduction&, bool, bool, std::int64_t*,
                                              const LaunchContext&);

namespace {

const bool reduce_filled = [] {
  for_types<float, BFloat16>([]<class T>() {
    sum.set(kDevice, dtype_of<T>, &launch_sum<T>);
    nansum.set(kDevice, dtype_of<T>, &launch_nansum<T>);
    variance.set(kDevice, dtype_of<T>, &launch_variance<T>);
    logsumexp.set(kDevice, dtype_of<T>, &launch_logsumexp<T>);
    norm.set(kDevice, dtype_of<T>, &launch_norm<T>);
    norm_backward.set(kDevice, dtype_of<T>, &launch_norm_backward<T>);
  });
  // The sums of f16 share their kernels. The other reductions lack f16.
  sum.set(kDevice, DType::f16, &launch_sum<Half>);
  nansum.set(kDevice, DType::f16, &launch_nansum<Half>);
  variance.set(kDevice, DType::f16, &launch_variance<Half>);
  for_types<std::int64_t, std::int32_t, std::uint8_t>(
      []<class T>() { sum.set(kDevice, dtype_of<T>, &launch_sum<T>); });
  sum.set(kDevice, DType::boolean, &launch_sum<std::uint8_t>);
  return true;
}();

}  // namespace
}  // namespace tapestry::kernels::cuda
