#pragma once
// Reports of indices out of range.
#include "tapestry/kernels/cuda/portable.cuh"
#include "tapestry/kernels/ops/index.h"

namespace tapestry::kernels::cuda {

/// Reports the position of an invalid index. Positions are not negative, so they may be compared as unsigned
/// numbers.
__device__ __forceinline__ void report_bad(const BadIndexCell& to, std::int64_t position) {
  if (to.cell)
    atomicMin(reinterpret_cast<unsigned long long*>(to.cell),
              static_cast<unsigned long long>(to.value(position)));
}

}  // namespace tapestry::kernels::cuda
