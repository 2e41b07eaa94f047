#include "tapestry/kernels/cuda/gemm.cuh"

namespace tapestry::kernels::cuda {
namespace {

const bool filled = [] {
  gemm.set(DeviceType::cuda, dtype_of<BFloat16>,
           [](const Gemm& g) { launch_gemm<BFloat16>(g, kernel_stream()); });
  return true;
}();

}  // namespace
}  // namespace tapestry::kernels::cuda
