#pragma once
// Softmax of the rows of x, in four versions. x and y have `columns` contiguous elements per row. The page
// docs/tutorials/from-naive-to-fast.md explains the versions.
#include <cstdint>
#include <limits>

#include "tapestry/kernels/cuda/portable.cuh"

namespace naive_to_fast {

using namespace tapestry::kernels::cuda;

inline constexpr float kInfinity = std::numeric_limits<float>::infinity();

/// One thread per row: grid (rows / 128, rounded up), block (128).
template <class = void>
__global__ void __launch_bounds__(128)
    softmax_thread_per_row(const float* x, float* y, std::int64_t rows, int columns) {
  const std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * 128 + threadIdx.x;
  if (row >= rows) return;
  x += row * columns;
  y += row * columns;
  float max = -kInfinity;
  for (int i = 0; i < columns; ++i) max = fmaxf(max, x[i]);
  float sum = 0;
  for (int i = 0; i < columns; ++i) sum += expf(x[i] - max);
  for (int i = 0; i < columns; ++i) y[i] = expf(x[i] - max) / sum;
}

/// Reduces one value per thread over the 256 threads of the block. All threads get the result. Each F has its
/// own shared array, and no barrier protects it from a second call, so a kernel may use each F once.
template <class F>
__device__ __forceinline__ float block_reduce(float value, F f) {
  __shared__ float values[256];
  const int t = static_cast<int>(threadIdx.x);
  values[t] = value;
  __syncthreads();
  for (int half = 128; half > 0; half /= 2) {
    if (t < half) values[t] = f(values[t], values[t + half]);
    __syncthreads();
  }
  return values[0];
}

/// One block per row: grid (rows), block (256).
template <class = void>
__global__ void __launch_bounds__(256) softmax_block_per_row(const float* x, float* y, int columns) {
  x += static_cast<std::int64_t>(blockIdx.x) * columns;
  y += static_cast<std::int64_t>(blockIdx.x) * columns;
  const int t = static_cast<int>(threadIdx.x);
  float max = -kInfinity;
  for (int i = t; i < columns; i += 256) max = fmaxf(max, x[i]);
  max = block_reduce(max, [](float a, float b) { return fmaxf(a, b); });
  float sum = 0;
  for (int i = t; i < columns; i += 256) sum += expf(x[i] - max);
  sum = block_reduce(sum, [](float a, float b) { return a + b; });
  for (int i = t; i < columns; i += 256) y[i] = expf(x[i] - max) / sum;
}

/// The maximum of some elements, and the sum of exp(element - max).
struct MaxAndSum {
  float max, sum;
};
__device__ __forceinline__ MaxAndSum merged(MaxAndSum a, MaxAndSum b) {
  const float max = fmaxf(a.max, b.max);
  // A part without elements has the maximum -infinity; -infinity - (-infinity) would be NaN.
  const float from_a = a.max == -kInfinity ? 0 : a.sum * expf(a.max - max);
  const float from_b = b.max == -kInfinity ? 0 : b.sum * expf(b.max - max);
  return {max, from_a + from_b};
}

/// Merges the parts of the threads of a warp, and then those of the block's kWarps warps.
template <int kWarps>
__device__ __forceinline__ MaxAndSum block_merge(MaxAndSum part) {
  __shared__ MaxAndSum parts[kWarps];
  const int t = static_cast<int>(threadIdx.x), lane = t % 32;
  for (int bits = 16; bits > 0; bits /= 2)
    part = merged(part,
                  {__shfl_xor_sync(kAllLanes, part.max, bits), __shfl_xor_sync(kAllLanes, part.sum, bits)});
  if (lane == 0) parts[t / 32] = part;
  __syncthreads();
  part = parts[0];
  for (int w = 1; w < kWarps; ++w) part = merged(part, parts[w]);
  return part;
}

/// Maximum and sum in one pass (Milakov and Gimelshein 2018): grid (rows), block (256).
template <class = void>
__global__ void __launch_bounds__(256) softmax_online(const float* x, float* y, int columns) {
  x += static_cast<std::int64_t>(blockIdx.x) * columns;
  y += static_cast<std::int64_t>(blockIdx.x) * columns;
  const int t = static_cast<int>(threadIdx.x);
  MaxAndSum part{-kInfinity, 0};
  for (int i = t; i < columns; i += 256) part = merged(part, {x[i], 1});
  const MaxAndSum all = block_merge<8>(part);
  for (int i = t; i < columns; i += 256) y[i] = expf(x[i] - all.max) / all.sum;
}

/// The row stays in registers: kPacks packs of four elements per thread. Grid (rows), block (128). `columns`
/// must be a multiple of 4 and at most 512 * kPacks, and x and y must be aligned to 16 bytes.
template <int kPacks>
__global__ void __launch_bounds__(128) softmax_in_registers(const float* x, float* y, int columns) {
  x += static_cast<std::int64_t>(blockIdx.x) * columns;
  y += static_cast<std::int64_t>(blockIdx.x) * columns;
  const int first = 4 * static_cast<int>(threadIdx.x);
  Pack<float, 4> held[kPacks];
#pragma unroll
  for (int p = 0; p < kPacks; ++p) {
    const int i = first + 512 * p;
    held[p] = pack_or<4>(x + i, i < columns, -kInfinity);
  }
  MaxAndSum part{-kInfinity, 0};
#pragma unroll
  for (int p = 0; p < kPacks; ++p)
#pragma unroll
    for (int k = 0; k < 4; ++k) part.max = fmaxf(part.max, held[p].v[k]);
#pragma unroll
  for (int p = 0; p < kPacks; ++p)
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      // A thread beyond the row holds -infinity alone.
      held[p].v[k] = held[p].v[k] == -kInfinity ? 0 : expf(held[p].v[k] - part.max);
      part.sum += held[p].v[k];
    }
  const MaxAndSum all = block_merge<4>(part);
  const float scale = part.max == -kInfinity ? 0 : expf(part.max - all.max) / all.sum;
#pragma unroll
  for (int p = 0; p < kPacks; ++p) {
    const int i = first + 512 * p;
#pragma unroll
    for (int k = 0; k < 4; ++k) held[p].v[k] *= scale;
    if (i < columns) *reinterpret_cast<Pack<float, 4>*>(y + i) = held[p];
  }
}

}  // namespace naive_to_fast
