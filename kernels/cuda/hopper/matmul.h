#pragma once
// Products by wgmma, for GPUs of compute capability 9.0.
#include <string_view>

#include "tapestry/kernels/ops/matmul.h"

namespace tapestry::kernels::cuda {

/// Why wgmma_gemm() cannot compute this product on the current device. Empty if it can: the dtype is bf16,
/// the lines begin at multiples of 16 bytes, the product is not small, and no sums of rows are wanted.
std::string_view wgmma_gemm_why_not(DType dtype, const GemmArgs& g);
/// Computes the product, for which wgmma_gemm_why_not() returned an empty text.
void wgmma_gemm(const LaunchContext& context, const GemmArgs& g);

}  // namespace tapestry::kernels::cuda
