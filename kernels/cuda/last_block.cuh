#pragma once
// How the blocks of one launch find out which of them is the last, so that it can combine the results of all
// without a second launch.
#include "tapestry/core/cuda/internal/stream_counters.h"
#include "tapestry/kernels/cuda/launch_context.cuh"

namespace tapestry::kernels::cuda {

using ::tapestry::cuda::kStreamCounters;

/// The counters of that stream, which must be the device's current stream.
inline std::uint32_t* counters_of(const LaunchContext& context) {
  return ::tapestry::cuda::stream_counters(current_stream(context.device));
}

/// True in all threads of the block that is the last of `blocks` to call it with this counter. Other blocks'
/// earlier writes to global memory are then visible to it. All threads of a block must call it. The pattern
/// is that of threadFenceReduction in NVIDIA's samples; the counter returns to 0.
template <class = void>
__device__ __forceinline__ bool is_last_block(std::uint32_t* counter, unsigned blocks) {
  __shared__ bool last;
  __threadfence();  // this thread's writes are visible before its block is counted
  __syncthreads();
  if (threadIdx.x == 0 && threadIdx.y == 0) {
    last = atomicAdd(counter, 1u) == blocks - 1;
    // A plain store would race with the additions of other blocks, which nothing orders before it.
    if (last) atomicExch(counter, 0u);
  }
  __syncthreads();
  if (last) __threadfence();  // later reads see what the counted blocks have written
  return last;
}

}  // namespace tapestry::kernels::cuda
