#include "tapestry/kernels/cuda/gemm.cuh"

namespace tapestry::kernels::cuda {
namespace {

const bool filled = [] {
  gemm.set(DeviceType::cuda, dtype_of<float>, [](const Gemm& g) { launch_gemm<float>(g, kernel_stream()); });
  return true;
}();

}  // namespace
}  // namespace tapestry::kernels::cuda
