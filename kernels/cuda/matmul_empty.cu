#include "tapestry/kernels/cuda/matmul_empty.cuh"

#include "tapestry/kernels/cuda/vendor/matmul.h"

namespace tapestry::kernels::cuda {
namespace {

/// cuBLASLt alone computes products in f64.
void gemm_f64(const LaunchContext& context, const GemmArgs& g) {
  if (g.k == 0 && g.epilogue == Epilogue::none) launch_gemm_empty<double>(context, g);
  else choose_gemm(context, DType::f64, g, nullptr);
}

const bool matmul_empty_filled = (gemm.set(DeviceType::cuda, DType::f64, &gemm_f64), true);

}  // namespace
}  // namespace tapestry::kernels::cuda
