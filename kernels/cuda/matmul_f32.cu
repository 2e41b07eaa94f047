#include "tapestry/kernels/cuda/matmul.cuh"
#include "tapestry/kernels/cuda/vendor/matmul.h"

namespace tapestry::kernels::cuda {
namespace {

const bool matmul_f32_filled =
    (gemm.set(DeviceType::cuda, dtype_of<float>, &gemm_by_policy<float, &launch_gemm<float>>), true);

}  // namespace
}  // namespace tapestry::kernels::cuda
