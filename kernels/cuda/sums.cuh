#pragma once
// Warp and block sums in a fixed order, and two-stage sums over all elements of arrays.
#include <algorithm>

#include "tapestry/kernels/cuda/launch_context.cuh"
#include "tapestry/kernels/scratch.h"
#include "tapestry/kernels/slot.h"

namespace tapestry::kernels::cuda {

/// Butterfly reduction; every lane gets the sums.
template <class C, int K>
__device__ __forceinline__ void sum_warp(C (&s)[K]) {
#pragma unroll
  for (int lanes = 16; lanes > 0; lanes /= 2)
#pragma unroll
    for (int k = 0; k < K; ++k) s[k] += __shfl_xor_sync(kAllLanes, s[k], lanes);
}
/// Sums over the kThreads threads of a block; every thread gets the sums. `parts` is shared memory. The
/// caller must put a barrier between two uses of the same `parts`.
template <int kThreads, class C, int K>
__device__ __forceinline__ void sum_block(C (&s)[K], C (&parts)[K][kThreads / 32]) {
  const int thread = static_cast<int>(threadIdx.x);
  sum_warp(s);
  if (thread % 32 == 0)
#pragma unroll
    for (int k = 0; k < K; ++k) parts[k][thread / 32] = s[k];
  __syncthreads();
#pragma unroll
  for (int k = 0; k < K; ++k) {
    s[k] = parts[k][0];
#pragma unroll
    for (int warp = 1; warp < kThreads / 32; ++warp) s[k] += parts[k][warp];
  }
}

inline constexpr int kSumThreads = 256;

/// First stage of a sum. The functor F adds terms of its arrays: add<V>(i, sums) adds those of elements [i, i
/// + V) with one vector load per array, and finish(sums) writes the result. Each block writes partial sums,
/// which add_parts() adds in double. A single block calls finish() itself.
template <class F>
__global__ void __launch_bounds__(kSumThreads) add_elements(std::int64_t n, bool packs, F f, float* parts) {
  constexpr int K = F::kSums, V = F::kPack;
  __shared__ float warps[K][kSumThreads / 32];
  float sums[K] = {};
  const std::int64_t thread = static_cast<std::int64_t>(blockIdx.x) * kSumThreads + threadIdx.x;
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * kSumThreads;
  const std::int64_t body = packs ? n / V * V : 0;
  for (std::int64_t i = thread * V; i < body; i += step * V) f.template add<V>(i, sums);
  for (std::int64_t i = body + thread; i < n; i += step) f.template add<1>(i, sums);
  sum_block<kSumThreads>(sums, warps);
  if (threadIdx.x != 0) return;
  if (gridDim.x == 1) {
    double total[K];
#pragma unroll
    for (int k = 0; k < K; ++k) total[k] = sums[k];
    f.finish(total);
  } else {
#pragma unroll
    for (int k = 0; k < K; ++k) parts[blockIdx.x * K + k] = sums[k];
  }
}

template <class F>
__global__ void __launch_bounds__(kSumThreads) add_parts(int count, F f, const float* parts) {
  constexpr int K = F::kSums;
  __shared__ double warps[K][kSumThreads / 32];
  double sums[K] = {};
  for (int i = static_cast<int>(threadIdx.x); i < count; i += kSumThreads)
#pragma unroll
    for (int k = 0; k < K; ++k) sums[k] += parts[i * K + k];
  sum_block<kSumThreads>(sums, warps);
  if (threadIdx.x == 0) f.finish(sums);
}

/// `packs` says whether all arrays are aligned for vector loads of F::kPack elements.
template <class F>
void launch_sums(std::int64_t n, bool packs, const F& f, const LaunchContext& context) {
  const cudaStream_t stream = stream_of(context);
  constexpr std::int64_t kBlock = kSumThreads * F::kPack * 4, kMost = 1024;
  const auto blocks = static_cast<unsigned>(std::clamp<std::int64_t>((n + kBlock - 1) / kBlock, 1, kMost));
  const Scratch<float> parts(context.device, blocks > 1 ? blocks * F::kSums : 0);
  launch(&add_elements<F>, blocks, kSumThreads, 0, stream, n, packs, f, parts.data());
  if (blocks > 1) launch(&add_parts<F>, 1, kSumThreads, 0, stream, static_cast<int>(blocks), f, parts.data());
}

}  // namespace tapestry::kernels::cuda
