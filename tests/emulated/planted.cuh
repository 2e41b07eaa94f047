#pragma once
// Small kernels with typical bugs. The template parameter `bug` selects the planted bug; Bug::none is
// correct.
#include "tapestry/kernels/cuda/portable.cuh"

namespace planted {

using namespace tapestry::kernels::cuda;

enum class Bug {
  none,
  shared_overrun,
  global_overrun,
  inner_overrun,
  misaligned,
  misaligned_load,
  no_barrier,
  no_double_buffer,
  copy_overwritten,
  copy_not_awaited,
  plain_sum,
  block_race,
  shuffle_as_fence,
  divergent_barrier,
  divergent_shuffle,
  two_shuffles,
  lane_outside_mask,
  exited_lane,
  wrong_lane,
  no_syncwarp,
  odd_pair,
  sum_in_any_order,
};

/// y = x / sum(x), one block of 128 threads per row.
template <Bug bug>
__global__ void normalise(const float* x, float* y, int columns) {
  SHARED(float, partial, [4]);
  const int t = static_cast<int>(threadIdx.x);
  x += static_cast<std::size_t>(blockIdx.x) * columns;
  y += static_cast<std::size_t>(blockIdx.x) * columns;
  float sum = 0;
  for (int i = t; i < columns; i += 128) sum += x[i];
  for (int lanes = 16; lanes; lanes /= 2) sum += __shfl_xor_sync(kAllLanes, sum, lanes);
  float* const own = partial + t / 32 + (bug == Bug::shared_overrun);
  if (t % 32 == 0) *own = sum;
  if (bug != Bug::no_barrier) __syncthreads();
  sum = partial[0] + partial[1] + partial[2] + partial[3];
  for (int i = t; i < columns + (bug == Bug::global_overrun); i += 128) y[i] = x[i] / sum;
}

/// Shifts x by one element: x[i] = x[i - 1]. One block.
template <Bug bug>
__global__ void shift(float* x) {
  SHARED(float, held, [128]);
  const int t = static_cast<int>(threadIdx.x);
  held[t] = x[t];
  if (bug != Bug::no_barrier) __syncthreads();
  x[t] = t ? held[t - 1] : 0;
}

/// Reverses the rows of a 2 x 4 tile. 8 threads.
template <Bug bug>
__global__ void reverse_rows(const float* x, float* y) {
  SHARED(float, tile, [2][4]);
  const int t = static_cast<int>(threadIdx.x);
  if (t < 4 || bug == Bug::inner_overrun)
    tile[0][t] = x[t];  // an overrun of row 0 lands in row 1, so the values are right
  if (t < 4) tile[1][t] = x[4 + t];
  __syncthreads();
  y[t] = tile[t / 4][3 - t % 4];
}

/// Copies through shared memory by float4. 32 threads.
template <Bug bug>
__global__ void copy_by_four(const float* x, float* y) {
  SHARED(float, held, [132]);
  const int t = static_cast<int>(threadIdx.x);
  *reinterpret_cast<float4*>(&held[4 * t + (bug == Bug::misaligned)]) =
      *reinterpret_cast<const float4*>(x + 4 * t + (bug == Bug::misaligned_load));
  __syncthreads();
  for (int i = 0; i < 4; ++i) y[4 * t + i] = held[4 * t + i];
}

/// y[t] = sum over k of x[k][t + 1], through a double buffer. One block of 64 threads.
template <Bug bug>
__global__ void sum_neighbours(const float* x, float* y, int rows) {
  SHARED(float, held, [2][64]);
  const int t = static_cast<int>(threadIdx.x);
  float sum = 0;
  for (int k = 0, half = 0; k < rows; ++k) {
    held[half][t] = x[k * 64 + t];
    __syncthreads();
    sum += held[half][(t + 1) % 64];
    if (bug != Bug::no_double_buffer) half ^= 1;
  }
  y[t] = sum;
}

/// y[t] = sum over k of x[k][63 - t]. Asynchronous copies load rows into a double buffer. One block of 64
/// threads.
template <Bug bug>
__global__ void sum_mirrored(const float* x, float* y, int rows) {
  DYN_SHARED(float, stage);  // [2][64]
  const int t = static_cast<int>(threadIdx.x);
  const auto fetch = [&](int k) {
    if (t < 16) ptx::cp_async16(stage + k % 2 * 64 + 4 * t, x + k * 64 + 4 * t, true);
    ptx::cp_async_commit();
  };
  float sum = 0;
  fetch(0);
  for (int k = 0; k < rows; ++k) {
    const bool more = k + 1 < rows;
    if (more) fetch(k + 1);
    if (bug != Bug::copy_not_awaited) {
      if (more) ptx::cp_async_wait<1>();
      else ptx::cp_async_wait<0>();
    }
    __syncthreads();
    sum += stage[k % 2 * 64 + 63 - t];
    if (bug != Bug::copy_overwritten) __syncthreads();
  }
  y[t] = sum;
}

/// y += sum of x.
template <Bug bug>
__global__ void total(const float* x, float* y, int n) {
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i >= n) return;
  if (bug == Bug::plain_sum) *y += x[i];
  else atomicAdd(y, x[i]);
}

/// y[block] = x[0]; the bug makes all blocks write y[0].
template <Bug bug>
__global__ void by_block(const float* x, float* y) {
  __syncthreads();
  if (threadIdx.x == 0) y[bug == Bug::block_race ? 0 : blockIdx.x] = x[0];
}

/// y[t] = x[31], broadcast through shared memory. One warp.
template <Bug bug>
__global__ void last_of_warp(const float* x, float* y) {
  SHARED(float, held, [1]);
  const int t = static_cast<int>(threadIdx.x);
  if (t == 31) held[0] = x[31];
  if (bug == Bug::shuffle_as_fence) __shfl_sync(kAllLanes, t, 0);
  else __syncwarp();
  y[t] = held[0];
}

/// y[r] = the largest of x[8 r] to x[8 r + 7]. Four lanes hold them, as an accumulator of mma lies in lanes.
/// One warp.
template <Bug bug>
__global__ void largest_of_rows(const float* x, float* y) {
  const int t = static_cast<int>(threadIdx.x);
  float largest = fmaxf(x[2 * t], x[2 * t + 1]);
  largest = fmaxf(largest, __shfl_xor_sync(kAllLanes, largest, 1));
  largest = fmaxf(largest, __shfl_xor_sync(kAllLanes, largest, bug == Bug::wrong_lane ? 4 : 2));
  if (t % 4 == 0) y[t / 4] = largest;
}

/// *y = sum of 32 x, by a tree in shared memory. Since Volta, the lanes of a warp need not run in lockstep.
/// One warp.
template <Bug bug>
__global__ void tree_of_warp(const float* x, float* y) {
  SHARED(float, held, [32]);
  const int t = static_cast<int>(threadIdx.x);
  held[t] = x[t];
  for (int half = 16; half > 0; half /= 2) {
    if (bug != Bug::no_syncwarp) __syncwarp();
    if (t < half) held[t] += held[t + half];
  }
  if (t == 0) *y = held[0];
}

/// y[t] = x[t][0] + x[t][1] of rows that are `pitch` elements apart. The bug reads both by one load, although
/// rows of an odd pitch do not begin at even elements. 8 threads.
template <Bug bug>
__global__ void sum_of_pairs(const tapestry::BFloat16* x, float* y, int pitch) {
  const int t = static_cast<int>(threadIdx.x);
  const tapestry::BFloat16* const row = x + t * pitch;
  if (bug == Bug::odd_pair) {
    const auto two = unpacked(*reinterpret_cast<const Pack<tapestry::BFloat16, 2>*>(row));
    y[t] = two.v[0] + two.v[1];
  } else {
    y[t] = load(row[0]) + load(row[1]);
  }
}

/// *y = sum of x. The bug adds in the order in which threads come, so that runs differ in the last bits. 64
/// threads.
template <Bug bug>
__global__ void repeatable_sum(const float* x, float* y) {
  const int t = static_cast<int>(threadIdx.x);
  if (bug == Bug::sum_in_any_order) {
    atomicAdd(y, x[t]);
  } else if (t == 0) {
    float sum = *y;
    for (int i = 0; i < 64; ++i) sum += x[i];
    *y = sum;
  }
}

/// Exchanges x with the adjacent lane. The bugs are barriers and shuffles that some lanes do not reach. 64
/// threads.
template <Bug bug>
__global__ void exchange(const float* x, float* y) {
  const int t = static_cast<int>(threadIdx.x), lane = t % 32;
  float v = x[t];
  if (bug == Bug::divergent_barrier) {
    if (t < 32) __syncthreads();
    else __syncthreads();
  }
  if (bug == Bug::exited_lane && lane == 7) return;
  if (bug == Bug::divergent_shuffle) {
    if (lane < 16) v = __shfl_xor_sync(kAllLanes, v, 1);
  } else if (bug == Bug::two_shuffles) {
    if (lane < 16) v = __shfl_xor_sync(kAllLanes, v, 1);
    else v = __shfl_xor_sync(kAllLanes, v, 1);
  } else {
    v = __shfl_xor_sync(bug == Bug::lane_outside_mask ? 0xffffu : kAllLanes, v, 1);
  }
  y[t] = v;
}

}  // namespace planted
