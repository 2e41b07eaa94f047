#pragma once
// Finds the true elements of a mask: blocks are counted, the counts are summed by one thread block, and then
// each thread block writes the coordinates of its elements. Nothing depends on the order in which blocks run.
#include "tapestry/kernels/cuda/dims.cuh"
#include "tapestry/kernels/cuda/launch_context.cuh"
#include "tapestry/kernels/ops/index.h"

namespace tapestry::kernels::cuda {

inline constexpr int kMaskThreads = 256;
inline constexpr int kMaskPerThread = static_cast<int>(kMaskBlock / kMaskThreads);

/// Returns the sum of `own` over the threads before this one, and the sum over all threads in `total`. All
/// threads of the block call it. `sums` is shared memory.
__device__ __forceinline__ std::int64_t sum_before(std::int64_t own, std::int64_t* sums,
                                                   std::int64_t& total) {
  const int thread = static_cast<int>(threadIdx.x);
  sums[thread] = own;
  __syncthreads();
  for (int step = 1; step < kMaskThreads; step *= 2) {
    const std::int64_t left = thread >= step ? sums[thread - step] : 0;
    __syncthreads();
    sums[thread] += left;
    __syncthreads();
  }
  total = sums[kMaskThreads - 1];
  const std::int64_t before = sums[thread] - own;
  __syncthreads();  // the caller may use `sums` again
  return before;
}

/// The number of true elements among the kMaskPerThread elements from `first` on.
__device__ __forceinline__ int count_true(const std::uint8_t* mask, std::int64_t first, std::int64_t n) {
  int count = 0;
#pragma unroll
  for (int i = 0; i < kMaskPerThread; ++i) {
    if (first + i < n) count += mask[first + i];
  }
  return count;
}
__device__ __forceinline__ std::int64_t first_of_thread() {
  return static_cast<std::int64_t>(blockIdx.x) * kMaskBlock + static_cast<int>(threadIdx.x) * kMaskPerThread;
}

/// counts[b] is the number of true elements in block b.
template <class = void>
__global__ void __launch_bounds__(kMaskThreads)
    count_mask_blocks(std::int64_t n, const std::uint8_t* mask, std::int64_t* counts) {
  __shared__ std::int64_t sums[kMaskThreads];
  std::int64_t total;
  sum_before(count_true(mask, first_of_thread(), n), sums, total);
  if (threadIdx.x == 0) counts[blockIdx.x] = total;
}

/// Replaces counts by the sums of all counts before them. counts[blocks] becomes the sum of all. Runs in one
/// thread block.
template <class = void>
__global__ void __launch_bounds__(kMaskThreads) sum_mask_blocks(std::int64_t blocks, std::int64_t* counts) {
  __shared__ std::int64_t sums[kMaskThreads];
  std::int64_t before = 0;
  for (std::int64_t first = 0; first < blocks; first += kMaskThreads) {
    const std::int64_t i = first + static_cast<int>(threadIdx.x);
    std::int64_t total;
    const std::int64_t own = sum_before(i < blocks ? counts[i] : 0, sums, total);
    if (i < blocks) counts[i] = before + own;
    before += total;
  }
  if (threadIdx.x == 0) counts[blocks] = before;
}

struct MaskCoordinates {
  int ndim;
  WideDivisor sizes[kMaxDims];
  std::int64_t element_stride, dim_stride;
};

template <class = void>
__global__ void __launch_bounds__(kMaskThreads)
    write_mask_coordinates(MaskCoordinates plan, std::int64_t n, const std::uint8_t* mask,
                           const std::int64_t* starts, std::int64_t* coordinates) {
  __shared__ std::int64_t sums[kMaskThreads];
  const std::int64_t first = first_of_thread();
  std::int64_t total;
  std::int64_t at = starts[blockIdx.x] + sum_before(count_true(mask, first, n), sums, total);
  for (int i = 0; i < kMaskPerThread; ++i) {
    if (first + i >= n || !mask[first + i]) continue;
    std::int64_t* const to = coordinates + at++ * plan.element_stride;
    auto rest = static_cast<std::uint64_t>(first + i);
    for (int d = plan.ndim - 1; d > 0; --d) {
      const std::uint64_t quotient = plan.sizes[d].divide(rest);
      to[d * plan.dim_stride] = static_cast<std::int64_t>(rest - quotient * plan.sizes[d].value);
      rest = quotient;
    }
    to[0] = static_cast<std::int64_t>(rest);
  }
}

inline unsigned mask_blocks(std::int64_t n) {
  return static_cast<unsigned>((n + kMaskBlock - 1) / kMaskBlock);
}

template <class = void>
void launch_mask_starts(const LaunchContext& context, const MaskStartsArgs& a) {
  const cudaStream_t stream = stream_of(context);
  std::int64_t* const starts = a.starts.as<std::int64_t>();
  if (a.n > 0)
    launch(&count_mask_blocks<>, mask_blocks(a.n), kMaskThreads, 0, stream, a.n, a.mask.as<std::uint8_t>(),
           starts);
  launch(&sum_mask_blocks<>, 1, kMaskThreads, 0, stream, mask_blocks(a.n), starts);
}

template <class = void>
void launch_mask_coordinates(const LaunchContext& context, const MaskCoordinatesArgs& a) {
  if (a.n == 0) return;
  MaskCoordinates plan{a.ndim, {}, a.element_stride, a.dim_stride};
  for (int d = 0; d < a.ndim; ++d) plan.sizes[d] = WideDivisor(a.sizes[d]);
  launch(&write_mask_coordinates<>, mask_blocks(a.n), kMaskThreads, 0, stream_of(context), plan, a.n,
         a.mask.as<std::uint8_t>(), a.starts.as<std::int64_t>(), a.coordinates.as<std::int64_t>());
}

}  // namespace tapestry::kernels::cuda
