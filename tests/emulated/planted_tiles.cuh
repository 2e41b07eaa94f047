#pragma once
// Kernels with tensor-core fragments, asynchronous pipelines and sums over blocks, with typical bugs. The
// template parameter selects the planted bug; TileBug::none is correct.
#include "tapestry/kernels/cuda/portable.cuh"

namespace planted {

using namespace tapestry::kernels::cuda;
using tapestry::BFloat16;

enum class TileBug {
  none,
  fragments_swapped,
  not_transposed,
  wrong_half,
  wrong_row_of_result,
  no_barrier,
  misaligned_rows,
  wait_too_short,
  groups_not_counted,
  wrong_stage,
  copies_of_others,
  no_fence,
  wrong_last_block,
  counter_not_reset,
  flag_without_barrier,
  not_initialised,
  fewer_threads,
  index_overflow,
};

/// d = a b of 16 x 16 matrices, all row-major, by mma. One warp.
template <TileBug bug>
__global__ void multiply_tile(const BFloat16* a, const BFloat16* b, float* d) {
  // Each row that ldmatrix reads must begin at a multiple of 16 bytes.
  constexpr int kPitch = bug == TileBug::misaligned_rows ? 20 : 24;
  SHARED(float, memory, [2 * 16 * kPitch / 2]);
  BFloat16* const a_tile = reinterpret_cast<BFloat16*>(memory);
  BFloat16* const b_tile = a_tile + 16 * kPitch;
  const int lane = static_cast<int>(threadIdx.x);
  for (int i = lane; i < 256; i += 32) {
    a_tile[i / 16 * kPitch + i % 16] = a[i];
    b_tile[i / 16 * kPitch + i % 16] = b[i];
  }
  if (bug != TileBug::no_barrier) __syncwarp();

  const int at = lane % 16 * kPitch + lane / 16 * 8;
  std::uint32_t of_a[4], of_b[4];
  ptx::ldmatrix_x4(of_a, a_tile + at);
  if (bug == TileBug::not_transposed) ptx::ldmatrix_x4(of_b, b_tile + at);
  else ptx::ldmatrix_x4_trans(of_b, b_tile + at);
  if (bug == TileBug::fragments_swapped) {
    const std::uint32_t held = of_a[1];
    of_a[1] = of_a[2];
    of_a[2] = held;
  }
  for (int j = 0; j < 2; ++j) {
    float sums[4] = {};
    if (bug == TileBug::wrong_half) ptx::mma_m16n8k16_bf16(sums, of_a, {of_b[j], of_b[j + 2]});
    else ptx::mma_m16n8k16_bf16(sums, of_a, {of_b[2 * j], of_b[2 * j + 1]});
    const int row = bug == TileBug::wrong_row_of_result ? lane % 8 : lane / 4;
    for (int e = 0; e < 4; ++e) d[(row + e / 2 * 8) * 16 + 8 * j + lane % 4 * 2 + e % 2] = sums[e];
  }
}

/// y[t] = sum over k of x[k][63 - t]. Asynchronous copies run two rows ahead in a ring of three stages. One
/// block of 64 threads.
template <TileBug bug>
__global__ void sum_ring(const float* x, float* y, int rows) {
  using Quad = Pack<float, 4>;
  SHARED(Quad, ring, [3 * 64 / 4]);
  float* const stages = ring[0].v;
  const int t = static_cast<int>(threadIdx.x);
  const auto fetch = [&](int k, int stage) {
    if (k < rows && t < 16) ptx::cp_async16(stages + stage * 64 + 4 * t, x + k * 64 + 4 * t, true);
    // A group for rows that do not exist keeps the numbers of the waits right.
    if (k < rows || bug != TileBug::groups_not_counted) ptx::cp_async_commit();
  };
  float sum = 0;
  fetch(0, 0);
  fetch(1, 1);
  for (int k = 0; k < rows; ++k) {
    ptx::cp_async_wait<bug == TileBug::wait_too_short ? 2 : 1>();
    if (bug != TileBug::copies_of_others) __syncthreads();
    fetch(k + 2, bug == TileBug::wrong_stage ? (k + 1) % 3 : (k + 2) % 3);
    sum += stages[k % 3 * 64 + 63 - t];
  }
  ptx::cp_async_wait<0>();
  y[t] = sum;
}

/// *y = sum of x: each block writes its part, and the last block to finish adds the parts. Blocks of 64
/// threads. `parts` has one element per block. *finished is 0 before and after.
template <TileBug bug>
__global__ void sum_of_blocks(const float* x, float* parts, int* finished, float* y) {
  SHARED(float, held, [64]);
  SHARED(int, is_last, [1]);
  const int t = static_cast<int>(threadIdx.x), blocks = static_cast<int>(gridDim.x);
  held[t] = x[blockIdx.x * 64 + threadIdx.x];
  __syncthreads();
  if (t == 0) {
    float part = 0;
    for (int i = 0; i < 64; ++i) part += held[i];
    parts[blockIdx.x] = part;
    if (bug != TileBug::no_fence) __threadfence();  // the part is visible before the counter
    const int before = atomicAdd(finished, 1);
    is_last[0] = before == (bug == TileBug::wrong_last_block ? blocks : blocks - 1);
    if (bug != TileBug::no_fence) __threadfence();
  }
  if (bug != TileBug::flag_without_barrier) __syncthreads();
  if (is_last[0] == 0) return;
  // One element per thread; thread 0 adds them up.
  held[t] = t < blocks ? parts[t] : 0;
  __syncthreads();
  if (t != 0) return;
  float sum = 0;
  for (int i = 0; i < 64; ++i) sum += held[i];
  *y = sum;
  if (bug != TileBug::counter_not_reset) *finished = 0;
}

/// y[i] = the number of elements of x that are i, for i < 32. Written for one block of 64 threads.
template <TileBug bug>
__global__ void histogram(const int* x, int* y, int n) {
  SHARED(int, counts, [64]);
  const int t = static_cast<int>(threadIdx.x);
  if (bug != TileBug::not_initialised) counts[t] = 0;
  __syncthreads();
  for (int i = t; i < n; i += 64) atomicAdd(&counts[x[i]], 1);
  __syncthreads();
  if (t < 32) y[t] = counts[t];
}

/// y[0] = the element at (row, column) of a matrix with `columns` columns, of which x points to the element
/// at (row, 0).
template <TileBug bug>
__global__ void element_of_large(const float* x, float* y, int row, int column, int columns) {
  const std::int64_t begin = static_cast<std::int64_t>(row) * columns;
  const std::int64_t at = bug == TileBug::index_overflow ? row * columns + column
                                                         : static_cast<std::int64_t>(row) * columns + column;
  const std::int64_t offset = at - begin;
  if (offset == column) y[0] = x[offset];
}

}  // namespace planted
