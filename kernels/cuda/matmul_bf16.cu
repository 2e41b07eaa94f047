#include "tapestry/kernels/cuda/hopper/matmul.h"
#include "tapestry/kernels/cuda/matmul.cuh"
#include "tapestry/kernels/cuda/vendor/matmul.h"

namespace tapestry::kernels::cuda {
namespace {

constexpr SpecialGemm kWgmmaGemm{"tapestry wgmma", &wgmma_gemm_why_not, &wgmma_gemm};
const bool matmul_bf16_filled = (gemm.set(DeviceType::cuda, dtype_of<BFloat16>,
                                          &gemm_by_policy<BFloat16, &launch_gemm<BFloat16>, &kWgmmaGemm>),
                                 true);

}  // namespace
}  // namespace tapestry::kernels::cuda
