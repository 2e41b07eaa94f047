// Threads of a block that do not wait for each other, or wait for threads that never come.
#include "tapestry/tools/ptx/tests/laboratory/planted/bugs.h"

constexpr unsigned kAll = 0xffffffffu;

template <bool mended>
__global__ void reverse(const float* x, float* y) {
  __shared__ float tile[64];
  tile[threadIdx.x] = x[threadIdx.x];
  if (mended) __syncthreads();
  y[threadIdx.x] = tile[63 - threadIdx.x];  // planted: missing_barrier
}
BUG(missing_barrier) {
  const Buffer<float> x(64, 1), y(64);
  reverse<mended><<<1, 64>>>(x.data, y.data);
  FINISH();
}

/// Sums of neighbours, a tile of 64 at a time.
template <bool mended>
__global__ void sums(const float* x, float* y, int tiles) {
  __shared__ float tile[64];
  for (int k = 0; k < tiles; ++k) {
    tile[threadIdx.x] = x[64 * k + static_cast<int>(threadIdx.x)];  // planted: next_iteration_overwrites
    __syncthreads();
    y[64 * k + static_cast<int>(threadIdx.x)] =
        tile[threadIdx.x] + tile[(threadIdx.x + 33) % 64];  // planted: next_iteration_overwrites
    if (mended) __syncthreads();
  }
}
BUG(next_iteration_overwrites) {
  const Buffer<float> x(256, 1), y(256);
  sums<mended><<<1, 64>>>(x.data, y.data, 4);
  FINISH();
}

template <bool mended>
__global__ void half_waits(float* y) {
  __shared__ float shared;
  if (threadIdx.x < 40) {
    if (threadIdx.x == 0) shared = 1;
    if (!mended) __syncthreads();  // planted: barrier_in_divergent_code
  }
  __syncthreads();  // planted: barrier_in_divergent_code
  y[threadIdx.x] = threadIdx.x < 40 ? shared : 0;
}
BUG(barrier_in_divergent_code) {
  const Buffer<float> y(64);
  half_waits<mended><<<1, 64>>>(y.data);
  FINISH();
}

/// Threads of the second warp have one iteration less.
template <bool mended>
__global__ void uneven_loop(float* y, int n) {
  __shared__ float tile[64];
  float sum = 0;
  const int rounds = (n + 63) / 64, mine = (n - static_cast<int>(threadIdx.x) + 63) / 64;
  for (int k = 0; k < (mended ? rounds : mine); ++k) {
    tile[threadIdx.x] = 1;
    __syncthreads();  // planted: barrier_in_uneven_loop
    sum += tile[threadIdx.x ^ 32];
    __syncthreads();
  }
  __syncthreads();  // planted: barrier_in_uneven_loop
  y[threadIdx.x] = sum;
}
BUG(barrier_in_uneven_loop) {
  const Buffer<float> y(64);
  uneven_loop<mended><<<1, 64>>>(y.data, 160);
  FINISH();
}

template <bool mended>
__global__ void broadcast(const float* x, float* y) {
  __shared__ float first;
  if (threadIdx.x == 0) first = x[0];
  if (mended) __syncthreads();
  y[threadIdx.x] = x[threadIdx.x] - first;  // planted: broadcast_without_barrier
}
BUG(broadcast_without_barrier) {
  const Buffer<float> x(64, 1), y(64);
  broadcast<mended><<<1, 64>>>(x.data, y.data);
  FINISH();
}

template <bool mended>
__global__ void half_mask(const float* x, float* y) {
  float v = x[threadIdx.x];
  for (int d = 16; d > 0; d /= 2)
    v += __shfl_down_sync(mended ? kAll : 0xffffu, v, d);  // planted: shuffle_mask_too_small
  if (threadIdx.x == 0) *y = v;
}
BUG(shuffle_mask_too_small) {
  const Buffer<float> x(32, 1), y(1);
  half_mask<mended><<<1, 32>>>(x.data, y.data);
  FINISH();
}

template <bool mended>
__global__ void shuffle_in_branch(const float* x, float* y, int n) {
  const int i = static_cast<int>(threadIdx.x);
  if (!mended && i >= n) return;
  float v = i < n ? x[i] : 0;
  for (int d = 16; d > 0; d /= 2) v += __shfl_xor_sync(kAll, v, d);  // planted: shuffle_after_return
  if (i == 0) *y = v;
}
BUG(shuffle_after_return) {
  const Buffer<float> x(20, 1), y(1);
  shuffle_in_branch<mended><<<1, 32>>>(x.data, y.data, 20);
  FINISH();
}

/// The sum over each half of the warp. The offset 16 leads into the other half, whose lanes the mask does not
/// name.
template <bool mended>
__global__ void half_sums(const float* x, float* y) {
  float v = x[threadIdx.x];
  const unsigned half = threadIdx.x < 16 ? 0xffffu : 0xffff0000u;
  for (int d = mended ? 8 : 16; d > 0; d /= 2)
    v += __shfl_xor_sync(half, v, d);  // planted: shuffle_from_wrong_lane
  y[threadIdx.x] = v;
}
BUG(shuffle_from_wrong_lane) {
  const Buffer<float> x(32, 1), y(32);
  half_sums<mended><<<1, 32>>>(x.data, y.data);
  FINISH();
}

template <bool mended>
__global__ void exchange(const float* x, float* y) {
  __shared__ float tile[32];
  tile[threadIdx.x] = x[threadIdx.x];  // planted: missing_syncwarp
  if (mended) __syncwarp();
  y[threadIdx.x] = tile[threadIdx.x ^ 1];  // planted: missing_syncwarp
}
BUG(missing_syncwarp) {
  const Buffer<float> x(32, 1), y(32);
  exchange<mended><<<1, 32>>>(x.data, y.data);
  FINISH();
}

/// The end of a reduction as it was written before threads of a warp had their own program counters.
template <bool mended>
__global__ void warp_reduction(const float* x, float* y) {
  __shared__ float part[64];
  const unsigned t = threadIdx.x;
  part[t] = x[t];
  part[t + 32] = 0;
  for (unsigned d = 16; d > 0; d /= 2) {
    if (mended) __syncwarp();
    const float sum = part[t] + part[t + d];  // planted: reduction_relies_on_lockstep
    if (mended) __syncwarp();
    part[t] = sum;
  }
  if (t == 0) *y = part[0];
}
BUG(reduction_relies_on_lockstep) {
  const Buffer<float> x(32, 1), y(1);
  warp_reduction<mended><<<1, 32>>>(x.data, y.data);
  FINISH();
}

/// 96 threads come to a barrier that is told to wait for 64.
template <bool mended>
__global__ void named_barrier(float* y) {
  __shared__ float tile[96];
  tile[threadIdx.x] = 1;
  asm volatile("bar.sync 1, %0;" ::"n"(mended ? 96 : 64) : "memory");  // planted: barrier_of_wrong_count
  y[threadIdx.x] = tile[95 - threadIdx.x];
}
BUG(barrier_of_wrong_count) {
  const Buffer<float> y(96);
  named_barrier<mended><<<1, 96>>>(y.data);
  FINISH();
}

/// The second stage reads a partial sum for each of 8 warps, but the block has 4.
template <bool mended>
__global__ void block_sum(const float* x, float* y) {
  __shared__ float parts[8];
  const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  float v = x[threadIdx.x];
  for (int d = 16; d > 0; d /= 2) v += __shfl_xor_sync(kAll, v, d);
  if (lane == 0) parts[warp] = v;
  __syncthreads();
  if (warp > 0) return;
  v = lane < (mended ? blockDim.x / 32 : 8u) ? parts[lane] : 0;  // planted: sum_of_absent_warps
  for (int d = 4; d > 0; d /= 2) v += __shfl_xor_sync(kAll, v, d);
  if (lane == 0) *y = v;
}
BUG(sum_of_absent_warps) {
  const Buffer<float> x(128, 1), y(1);
  block_sum<mended><<<1, 128>>>(x.data, y.data);
  FINISH();
}

template <bool mended>
__global__ void bins_in_shared(const unsigned char* x, unsigned* y) {
  __shared__ unsigned bins[16];
  if (threadIdx.x < 16) bins[threadIdx.x] = 0;
  __syncthreads();
  if (mended) atomicAdd(&bins[x[threadIdx.x]], 1u);
  else ++bins[x[threadIdx.x]];  // planted: lost_update_in_shared_memory
  __syncthreads();
  if (threadIdx.x < 16) y[threadIdx.x] = bins[threadIdx.x];
}
BUG(lost_update_in_shared_memory) {
  const Buffer<unsigned char> x(64, 3);
  const Buffer<unsigned> y(16);
  bins_in_shared<mended><<<1, 64>>>(x.data, y.data);
  FINISH();
}

/// The largest of each 8 numbers, which four lanes hold. All lanes are in the mask, but the offset 4 leads to
/// another four.
template <bool mended>
__global__ void largest_of_rows(const float* x, float* y) {
  const unsigned t = threadIdx.x;
  float largest = fmaxf(x[2 * t], x[2 * t + 1]);
  largest = fmaxf(largest, __shfl_xor_sync(kAll, largest, 1));
  largest = fmaxf(largest, __shfl_xor_sync(kAll, largest, mended ? 2 : 4));
  if (t % 4 == 0) y[t / 4] = largest;
}
BUG(shuffle_of_wrong_offset) {
  std::vector<float> numbers(64);
  for (std::size_t i = 0; i < 64; ++i) numbers[i] = static_cast<float>(i);
  const Buffer<float> x(64), y(8);
  CHECK(cudaMemcpy(x.data, numbers.data(), x.bytes(), cudaMemcpyHostToDevice));
  largest_of_rows<mended><<<1, 32>>>(x.data, y.data);
  FINISH();
  EXPECT(y.download()[0] == 7);  // planted: shuffle_of_wrong_offset
}

/// A shuffle waits for the lanes of its mask, but makes no writes visible.
template <bool mended>
__global__ void last_of_warp(const float* x, float* y) {
  __shared__ float held;
  if (threadIdx.x == 31) held = x[31];
  if (mended) __syncwarp();
  else __shfl_sync(kAll, x[threadIdx.x], 0);
  y[threadIdx.x] = held;  // planted: shuffle_as_fence
}
BUG(shuffle_as_fence) {
  const Buffer<float> x(32, 5), y(32);
  last_of_warp<mended><<<1, 32>>>(x.data, y.data);
  FINISH();
}

/// Written for 64 threads; the launch has half of them, which see half of the numbers.
__global__ void count_ones(const int* x, int* y, int n) {
  __shared__ int count;
  if (threadIdx.x == 0) count = 0;
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < n; i += 64) atomicAdd(&count, x[i]);
  __syncthreads();
  if (threadIdx.x == 0) *y = count;
}
BUG(fewer_threads_than_expected) {
  const Buffer<int> x(320, 1), y(1);
  count_ones<<<1, mended ? 64 : 32>>>(x.data, y.data, 320);
  FINISH();
  EXPECT(y.download()[0] == 320);  // planted: fewer_threads_than_expected
}

/// Row 0 of a tile overflows into row 1, which its own threads write with the same numbers.
template <bool mended>
__global__ void reverse_rows(const float* x, float* y) {
  __shared__ float tile[2][4];
  const unsigned t = threadIdx.x;
  if (t < 4 || !mended) tile[0][t] = x[t];  // planted: inner_index_out_of_bounds
  if (t < 4) tile[1][t] = x[4 + t];         // planted: inner_index_out_of_bounds
  __syncthreads();
  y[t] = tile[t / 4][3 - t % 4];
}
BUG(inner_index_out_of_bounds) {
  const Buffer<float> x(8, 1), y(8);
  reverse_rows<mended><<<1, 8>>>(x.data, y.data);
  FINISH();
}
