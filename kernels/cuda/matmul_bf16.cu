#include "tapestry/kernels/cuda/matmul.cuh"
#include "tapestry/kernels/cuda/vendor/matmul.h"

namespace tapestry::kernels::cuda {
namespace {

const bool filled =
    (gemm.set(DeviceType::cuda, dtype_of<BFloat16>, &gemm_by_policy<BFloat16, &launch_gemm<BFloat16>>), true);

}  // namespace
}  // namespace tapestry::kernels::cuda
