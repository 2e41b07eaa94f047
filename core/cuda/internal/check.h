#pragma once
// TAPESTRY_CUDA(cudaMalloc(&p, bytes)) throws CudaError unless the call succeeds. Only runtime.cpp includes
// this header. It checks every call to CUDA with this macro, except calls whose errors it ignores or handles
// itself.
#include <cuda_runtime_api.h>

#include "tapestry/core/cuda/internal/failure.h"
#include "tapestry/core/source_location.h"

namespace tapestry::cuda {

/// Makes `gpu` the thread's current device. The previous device is not restored: every caller sets the device
/// that it needs, and returning to GPU 0 would create a context there, which takes memory for nothing.
void use_gpu(int gpu);

/// Throws OutOfMemoryError for cudaErrorMemoryAllocation, CudaError for every other error. Clears the
/// runtime's last error.
[[noreturn]] void call_failed(cudaError_t error, const char* call, const SourceLocation& where);

inline void check_call(cudaError_t error, const char* call,
                       const SourceLocation& where = SourceLocation::current()) {
  if (error != cudaSuccess) [[unlikely]]
    call_failed(error, call, where);
}

}  // namespace tapestry::cuda

#define TAPESTRY_CUDA(call) ::tapestry::cuda::check_call((call), #call)
