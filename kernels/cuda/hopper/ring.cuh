#pragma once
// The ring of stages in shared memory that connects the warp that loads with the warps that multiply.
#include "tapestry/kernels/cuda/hopper/ptx.cuh"

namespace tapestry::kernels::cuda {

/// A position in the ring. The parity is that of the phase of the stage's barrier `full` in this round.
template <int kStages>
struct StageOfRing {
  int stage = 0;
  unsigned parity = 0;
  __device__ __forceinline__ void advance() {
    if (++stage == kStages) stage = 0, parity ^= 1;
  }
};

}  // namespace tapestry::kernels::cuda
