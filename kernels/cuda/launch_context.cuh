#pragma once
// The stream in the LaunchContext that a slot passes to its kernels. portable.cuh is public and does without slots.
#include "tapestry/kernels/cuda/portable.cuh"
#include "tapestry/kernels/slot.h"

namespace tapestry::kernels::cuda {

/// The stream that the slot chose for its kernel's launches.
inline cudaStream_t stream_of(const LaunchContext& context) {
  return static_cast<cudaStream_t>(context.stream);
}

}  // namespace tapestry::kernels::cuda
