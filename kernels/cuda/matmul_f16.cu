#include "tapestry/kernels/cuda/matmul.cuh"
#include "tapestry/kernels/cuda/vendor/matmul.h"

namespace tapestry::kernels::cuda {
namespace {

const bool matmul_f16_filled =
    (gemm.set(DeviceType::cuda, dtype_of<Half>, &gemm_by_policy<Half, &launch_gemm<Half>>), true);

}  // namespace
}  // namespace tapestry::kernels::cuda
