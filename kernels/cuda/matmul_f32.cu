#include "tapestry/kernels/cuda/matmul.cuh"

namespace tapestry::kernels::cuda {
namespace {

const bool filled = (gemm.set(DeviceType::cuda, dtype_of<float>, &launch_gemm<float>), true);

}  // namespace
}  // namespace tapestry::kernels::cuda
