#include "tapestry/kernels/cuda/matmul_column_sum.cuh"

namespace tapestry::kernels::cuda {

// These kernels are instantiated for conv_16.cu, too.
template void launch_column_sum<Half>(const LaunchContext&, const ColumnSumArgs&);
template void launch_column_sum<BFloat16>(const LaunchContext&, const ColumnSumArgs&);

namespace {

const bool matmul_column_sum_filled = for_types<float, Half, BFloat16>(
    []<class T>() { column_sum.set(DeviceType::cuda, dtype_of<T>, &launch_column_sum<T>); });

}  // namespace
}  // namespace tapestry::kernels::cuda
