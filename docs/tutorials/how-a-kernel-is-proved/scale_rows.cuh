#pragma once
// The kernel that the page follows through all checks.
#include "tapestry/kernels/cuda/portable.cuh"

/// y = x / max|x| for each row of `columns` elements. A block of 128 threads computes a row.
template <class = void>
__global__ void __launch_bounds__(128) scale_rows(const float* x, float* y, std::int64_t columns) {
  __shared__ float largest[128];
  const int t = static_cast<int>(threadIdx.x);
  x += blockIdx.x * columns;
  y += blockIdx.x * columns;
  float mine = 0;
  for (std::int64_t i = t; i < columns; i += 128) mine = fmaxf(mine, fabsf(x[i]));
  largest[t] = mine;
  __syncthreads();
  for (int half = 64; half > 0; half /= 2) {
    if (t < half) largest[t] = fmaxf(largest[t], largest[t + half]);
    __syncthreads();
  }
  const float scale = 1 / largest[0];
  for (std::int64_t i = t; i < columns; i += 128) y[i] = x[i] * scale;
}
