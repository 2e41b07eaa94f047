#pragma once
// The slot `gemm` on GPUs: own kernels or cuBLASLt's, as the policy says.
#include <string_view>

#include "tapestry/kernels/ops/matmul.h"

namespace tapestry::kernels::cuda {

using OwnGemm = void (*)(const LaunchContext&, const GemmArgs&);

/// An own kernel that computes some products only, and is preferred for those to the one that computes all.
struct SpecialGemm {
  const char* name;                                           ///< of the candidate
  std::string_view (*why_not)(DType dtype, const GemmArgs&);  ///< empty if it can compute the product
  OwnGemm run;
};

/// Computes the product by `own`, by `special` or by cuBLASLt. `own` is null for dtypes that have no own
/// kernel, and `special` is null if there is none.
void choose_gemm(const LaunchContext& context, DType dtype, const GemmArgs& g, OwnGemm own,
                 const SpecialGemm* special = nullptr);

/// The kernel to register for T, whose own kernel is `own`.
template <class T, OwnGemm own, const SpecialGemm* special = nullptr>
void gemm_by_policy(const LaunchContext& context, const GemmArgs& g) {
  choose_gemm(context, dtype_of<T>, g, own, special);
}

}  // namespace tapestry::kernels::cuda
