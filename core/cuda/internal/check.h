#pragma once
// The one way to call CUDA: TAPESTRY_CUDA(cudaMalloc(&p, bytes)) throws CudaError unless it succeeds. For
// sources that are compiled in builds with CUDA only.
#include <cuda_runtime_api.h>

#include "tapestry/core/cuda/internal/failure.h"
#include "tapestry/core/source_location.h"

namespace tapestry::cuda {

/// From here on this thread's calls to CUDA are about this GPU. Nothing puts the earlier one back: whoever
/// calls CUDA says which GPU first, and to go back to GPU 0 would take memory there for nothing.
void use_gpu(int gpu);

/// Throws CudaError; OutOfMemoryError where that is what it was.
[[noreturn]] void call_failed(cudaError_t error, const char* call, const SourceLocation& where);

inline void check_call(cudaError_t error, const char* call,
                       const SourceLocation& where = SourceLocation::current()) {
  if (error != cudaSuccess) [[unlikely]]
    call_failed(error, call, where);
}

}  // namespace tapestry::cuda

#define TAPESTRY_CUDA(call) ::tapestry::cuda::check_call((call), #call)
