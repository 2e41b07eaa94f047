#include "tapestry/kernels/cuda/matmul_column_sum.cuh"

namespace tapestry::kernels::cuda {

template void launch_column_sum<BFloat16>(const LaunchContext&,
                                          const ColumnSumArgs&);  // for conv_bf16.cu, too

namespace {

const bool filled = for_types<float, Half, BFloat16>(
    []<class T>() { column_sum.set(DeviceType::cuda, dtype_of<T>, &launch_column_sum<T>); });

}  // namespace
}  // namespace tapestry::kernels::cuda
