#include "tapestry/kernels/cuda/column_sum.cuh"

#include "tapestry/kernels/ops/gemm.h"

namespace tapestry::kernels::cuda {
namespace {

template <class T>
void kernel(std::int64_t rows, std::int64_t cols, const void* x, void* y) {
  launch_column_sum(rows, cols, static_cast<const T*>(x), static_cast<T*>(y), kernel_device, kernel_stream());
}

const bool filled =
    for_types<float, BFloat16>([]<class T>() { column_sum.set(DeviceType::cuda, dtype_of<T>, &kernel<T>); });

}  // namespace
}  // namespace tapestry::kernels::cuda
