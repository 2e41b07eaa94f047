#pragma once
// cuBLASLt's functions, found at run time. Only for files that are compiled where cublasLt.h is found.
#include <cublasLt.h>

#include "tapestry/core/cuda/internal/libraries.h"

namespace tapestry::kernels::cuda {

/// The functions of cuBLASLt that are called, under cuBLASLt's own names.
#define TAPESTRY_CUBLASLT_FUNCTIONS(X)     \
  X(cublasLtCreate)                        \
  X(cublasLtDestroy)                       \
  X(cublasLtGetStatusName)                 \
  X(cublasLtGetStatusString)               \
  X(cublasLtMatmul)                        \
  X(cublasLtMatmulAlgoGetHeuristic)        \
  X(cublasLtMatmulDescInit_internal)       \
  X(cublasLtMatmulDescSetAttribute)        \
  X(cublasLtMatrixLayoutInit_internal)     \
  X(cublasLtMatrixLayoutSetAttribute)      \
  X(cublasLtMatmulPreferenceInit_internal) \
  X(cublasLtMatmulPreferenceSetAttribute)

struct CublasLtFunctions {
  /// Throws DeviceError if the library lacks one of them.
  explicit CublasLtFunctions(const ::tapestry::cuda::OpenLibrary& library);
#define TAPESTRY_MEMBER(name) decltype(&::name) name;
  TAPESTRY_CUBLASLT_FUNCTIONS(TAPESTRY_MEMBER)
#undef TAPESTRY_MEMBER
};

}  // namespace tapestry::kernels::cuda
