#include "tapestry/kernels/cuda/scan.cuh"

namespace tapestry::kernels::cuda {
namespace {

template <class T, class C>
void fill_scans() {
  constexpr DeviceType device = DeviceType::cuda;
  constexpr DType dtype = dtype_of<T>;
  cumsum.set(device, dtype, &launch_scan<Cumulative<T, C, false>, ScanArgs>);
  cumprod.set(device, dtype, &launch_scan<Cumulative<T, C, true>, ScanArgs>);
  cummax.set(device, dtype, &launch_scan<CumulativeExtreme<T>, CummaxArgs>);
  if constexpr (is_floating(dtype)) {
    cumprod_backward.set(device, dtype, &launch_scan<CumprodBackward<T, C>, CumprodBackwardArgs>);
    cummax_backward.set(device, dtype, &launch_scan<CummaxBackward<T, C>, CummaxBackwardArgs>);
    logcumsumexp.set(device, dtype, &launch_scan<LogCumulative<T, C>, ScanArgs>);
    logcumsumexp_backward.set(device, dtype, &launch_scan<LogCumulativeBackward<T, C>, CumprodBackwardArgs>);
  }
}

const bool scan_filled = [] {
  fill_scans<float, float>();
  fill_scans<std::int64_t, std::uint64_t>();
  return true;
}();

}  // namespace
}  // namespace tapestry::kernels::cuda
