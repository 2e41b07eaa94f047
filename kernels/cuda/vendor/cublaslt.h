#pragma once
// Matrix products by cuBLASLt, NVIDIA's library. Does not include its header.
#include <memory>
#include <string>
#include <string_view>

#include "tapestry/core/cuda/internal/libraries.h"
#include "tapestry/kernels/cuda/vendor/gemm_problem.h"

namespace tapestry::kernels::cuda {

/// How cuBLASLt computes one problem: descriptors, and the algorithms that its heuristics propose, the best
/// first.
class CublasLtPlan;

/// What cuBLASLt can do for a problem.
struct CublasLtOffer {
  std::shared_ptr<const CublasLtPlan> plan;  ///< null if it cannot compute the problem
  int algorithms = 0;                        ///< at least 1 with a plan
  std::string why_not;                       ///< without a plan
  std::string version;                       ///< of the library; empty if there is none
};
/// The most algorithms in an offer.
inline constexpr int kMostAlgorithms = 3;

/// Asks the heuristics at the first call for a problem on a GPU; later calls return the same offer. Throws
/// CudaError if the library fails. `key` is exact_key(problem).
CublasLtOffer cublaslt_offer(const LaunchContext& context, const GemmArgs& g, const GemmProblem& problem,
                             const std::string& key);
/// Enqueues the product on the context's stream. Throws CudaError if cuBLASLt refuses it.
void cublaslt_run(const LaunchContext& context, const GemmArgs& g, const CublasLtPlan& plan, int algorithm);

/// For tests: calls go to this library, also on fake GPUs; null restores cuda::cublaslt_library(). Destroys
/// the handles of the previous library of this kind. No other thread may be computing. Throws DeviceError if
/// the library lacks a function. Does nothing in a build without cublasLt.h.
void use_cublaslt_library(const ::tapestry::cuda::OpenLibrary* library);
/// True in builds that found cublasLt.h.
bool built_with_cublaslt();

}  // namespace tapestry::kernels::cuda
