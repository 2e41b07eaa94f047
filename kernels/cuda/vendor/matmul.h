#pragma once
// The slot `gemm` on GPUs: own kernels or cuBLASLt's, as the policy says.
#include "tapestry/kernels/ops/matmul.h"

namespace tapestry::kernels::cuda {

using OwnGemm = void (*)(const LaunchContext&, const GemmArgs&);

/// Computes the product by `own` or by cuBLASLt. `own` is null for dtypes that have no own kernel.
void choose_gemm(const LaunchContext& context, DType dtype, const GemmArgs& g, OwnGemm own);

/// The kernel to register for T, whose own kernel is `own`.
template <class T, OwnGemm own>
void gemm_by_policy(const LaunchContext& context, const GemmArgs& g) {
  choose_gemm(context, dtype_of<T>, g, own);
}

}  // namespace tapestry::kernels::cuda
