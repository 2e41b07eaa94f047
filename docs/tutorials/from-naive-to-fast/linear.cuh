#pragma once
// y = relu(x w^T + bias) in four versions: x is (m, k), w is (n, k), bias has n elements, and y is (m, n),
// all contiguous. The page docs/tutorials/from-naive-to-fast.md explains the versions.
#include <cstdint>

#include "tapestry/kernels/cuda/portable.cuh"

namespace naive_to_fast {

using namespace tapestry::kernels::cuda;

using Quad = Pack<float, 4>;

template <class T>
struct Linear {
  const T *x, *w, *bias;
  T* y;
  int m, n, k;
};

/// One thread per output: grid (n / 32, m / 8, both rounded up), block (32, 8).
template <class = void>
__global__ void __launch_bounds__(256) linear_thread_per_output(Linear<float> p) {
  const int column = static_cast<int>(blockIdx.x * 32 + threadIdx.x);
  const int row = static_cast<int>(blockIdx.y * 8 + threadIdx.y);
  if (row >= p.m || column >= p.n) return;
  const float* const x = p.x + static_cast<std::int64_t>(row) * p.k;
  const float* const w = p.w + static_cast<std::int64_t>(column) * p.k;
  float sum = p.bias[column];
  for (int k = 0; k < p.k; ++k) sum = fmaf(x[k], w[k], sum);
  p.y[static_cast<std::int64_t>(row) * p.n + column] = fmaxf(sum, 0);
}

/// A 32 x 32 tile of y per block: grid (n / 32, m / 32, both rounded up), block (32, 32).
template <class = void>
__global__ void __launch_bounds__(1024) linear_shared_tiles(Linear<float> p) {
  __shared__ float x_tile[32][33];
  __shared__ float w_tile[32][33];
  const int tx = static_cast<int>(threadIdx.x), ty = static_cast<int>(threadIdx.y);
  const int row = static_cast<int>(blockIdx.y) * 32, column = static_cast<int>(blockIdx.x) * 32;
  float sum = 0;
  for (int k = 0; k < p.k; k += 32) {
    // Adjacent threads read adjacent elements along k, of x and of w.
    const bool has_k = k + tx < p.k;
    x_tile[ty][tx] = has_k && row + ty < p.m ? p.x[static_cast<std::int64_t>(row + ty) * p.k + k + tx] : 0;
    w_tile[ty][tx] =
        has_k && column + ty < p.n ? p.w[static_cast<std::int64_t>(column + ty) * p.k + k + tx] : 0;
    __syncthreads();
#pragma unroll
    for (int i = 0; i < 32; ++i) sum = fmaf(x_tile[ty][i], w_tile[tx][i], sum);
    __syncthreads();
  }
  if (row + ty < p.m && column + tx < p.n)
    p.y[static_cast<std::int64_t>(row + ty) * p.n + column + tx] = fmaxf(sum + p.bias[column + tx], 0);
}

/// The sums of a thread: 8 rows and 8 columns of the block's 64 x 128 tile. They lie 4 together, so that one
/// instruction reads 4 from shared memory; the other 4 rows are 32 further down, the other columns 64 further
/// right.
struct ThreadTile {
  int row, column;
  float sums[8][8];
  __device__ ThreadTile() {
    const int t = static_cast<int>(threadIdx.x);  // of 128
    row = t / 16 * 4;
    column = t % 16 * 4;
#pragma unroll
    for (int i = 0; i < 8; ++i)
#pragma unroll
      for (int j = 0; j < 8; ++j) sums[i][j] = 0;
  }
  __device__ static int row_at(int i) { return i % 4 + i / 4 * 32; }
  __device__ static int column_at(int j) { return j % 4 + j / 4 * 64; }

  /// Adds the products of one step along k. a points to the 64 rows' elements, b to the 128 columns'.
  __device__ void add(const float* a, const float* b) {
    const auto at = [](const float* from) { return *reinterpret_cast<const Quad*>(from); };
    const Quad as[2] = {at(a + row), at(a + row + 32)}, bs[2] = {at(b + column), at(b + column + 64)};
#pragma unroll
    for (int i = 0; i < 8; ++i)
#pragma unroll
      for (int j = 0; j < 8; ++j) sums[i][j] = fmaf(as[i / 4].v[i % 4], bs[j / 4].v[j % 4], sums[i][j]);
  }
};

/// A 64 x 128 tile of y per block, 8 x 8 of it per thread: grid (n / 128, m / 64, both rounded up), block
/// (128).
template <class = void>
__global__ void __launch_bounds__(128) linear_register_tiles(Linear<float> p) {
  constexpr int kDepth = 16;
  // k comes first: the elements that a thread needs for one k are then contiguous. 4 elements more per line
  // keep the packs aligned and spread the lines that a warp stores to over the banks.
  __shared__ Quad x_packs[kDepth * 68 / 4];
  __shared__ Quad w_packs[kDepth * 132 / 4];
  float *const x_tile = x_packs[0].v, *const w_tile = w_packs[0].v;
  const int t = static_cast<int>(threadIdx.x);
  const int row = static_cast<int>(blockIdx.y) * 64, column = static_cast<int>(blockIdx.x) * 128;
  ThreadTile tile;
  for (int k = 0; k < p.k; k += kDepth) {
    const int own_k = t % kDepth;
    const auto fetch = [&](const float* from, int line, int lines, float* to) {
      const bool has = line < lines && k + own_k < p.k;
      *to = has ? from[static_cast<std::int64_t>(line) * p.k + k + own_k] : 0;
    };
#pragma unroll
    for (int i = t / kDepth; i < 64; i += 8) fetch(p.x, row + i, p.m, x_tile + own_k * 68 + i);
#pragma unroll
    for (int i = t / kDepth; i < 128; i += 8) fetch(p.w, column + i, p.n, w_tile + own_k * 132 + i);
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kDepth; ++i) tile.add(x_tile + i * 68, w_tile + i * 132);
    __syncthreads();
  }
#pragma unroll
  for (int i = 0; i < 8; ++i)
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const int r = row + tile.row + tile.row_at(i), c = column + tile.column + tile.column_at(j);
      if (r < p.m && c < p.n)
        p.y[static_cast<std::int64_t>(r) * p.n + c] = fmaxf(tile.sums[i][j] + p.bias[c], 0);
    }
}

/// Where the chunk of 8 elements that holds (line, k) lies in a tile of 32 along k, in elements. The four
/// chunks of a line are permuted by XOR, so that 8 lines' chunks at the same k lie in different banks.
__device__ __forceinline__ int chunk(int line, int k) { return 8 * (line * 4 + ((k / 8) ^ (line / 2 % 4))); }

/// bf16 on tensor cores, a 64 x 64 tile of y per block: grid (n / 64, m / 64, both rounded up), block (128).
/// k must be a multiple of 8, and x and w must be aligned to 16 bytes.
template <class = void>
__global__ void __launch_bounds__(128) linear_tensor_cores(Linear<tapestry::BFloat16> p) {
  using tapestry::BFloat16;
  constexpr int kTile = 64 * 32;  // elements of x, and of w, of one stage
  using Chunk = Pack<BFloat16, 8>;
  __shared__ Chunk stages[2 * 2 * kTile / 8];
  const int t = static_cast<int>(threadIdx.x), lane = t % 32, warp = t / 32;
  const int row = static_cast<int>(blockIdx.y) * 64, column = static_cast<int>(blockIdx.x) * 64;
  const int warp_row = warp % 2 * 32, warp_column = warp / 2 * 32;  // of the warp's 32 x 32

  const auto fetch = [&](int k, BFloat16* stage) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int line = t / 4 + 32 * i, at = k + t % 4 * 8;
      const bool has_x = at < p.k && row + line < p.m, has_w = at < p.k && column + line < p.n;
      // The address must be valid even where zeros are written instead.
      const std::int64_t x = has_x ? static_cast<std::int64_t>(row + line) * p.k + at : 0;
      const std::int64_t w = has_w ? static_cast<std::int64_t>(column + line) * p.k + at : 0;
      ptx::cp_async16(stage + chunk(line, t % 4 * 8), p.x + x, has_x);
      ptx::cp_async16(stage + kTile + chunk(line, t % 4 * 8), p.w + w, has_w);
    }
    ptx::cp_async_commit();
  };

  float sums[2][4][4] = {};  // of 16 x 8 each; a lane holds 4 of the 128
  const auto multiply = [&](const BFloat16* stage) {
#pragma unroll
    for (int k = 0; k < 32; k += 16) {
      std::uint32_t a[2][4], b[2][4];
      const int low = lane % 16, high = lane / 16 * 8;
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        // a: rows 0-7 and 8-15 of k 0-7, then of k 8-15. b: k 0-7 and 8-15 of columns 0-7, then of 8-15.
        ptx::ldmatrix_x4(a[i], stage + chunk(warp_row + 16 * i + low, k + high));
        ptx::ldmatrix_x4(b[i],
                         stage + kTile + chunk(warp_column + 16 * i + lane % 8 + high, k + lane / 8 % 2 * 8));
      }
#pragma unroll
      for (int i = 0; i < 2; ++i)
#pragma unroll
        for (int j = 0; j < 4; ++j)
          ptx::mma_m16n8k16_bf16(sums[i][j], a[i], {b[j / 2][j % 2 * 2], b[j / 2][j % 2 * 2 + 1]});
    }
  };

  BFloat16* const shared = stages[0].v;
  fetch(0, shared);
  for (int k = 0, stage = 0; k < p.k; k += 32, stage ^= 1) {
    if (k + 32 < p.k) {
      fetch(k + 32, shared + (stage ^ 1) * 2 * kTile);
      ptx::cp_async_wait<1>();  // all but the newest group, so this step's tiles are here
    } else {
      ptx::cp_async_wait<0>();
    }
    __syncthreads();
    multiply(shared + stage * 2 * kTile);
    __syncthreads();  // the next fetch overwrites this stage
  }
#pragma unroll
  for (int i = 0; i < 2; ++i)
#pragma unroll
    for (int j = 0; j < 4; ++j)
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int r = row + warp_row + 16 * i + lane / 4 + e / 2 * 8;
        const int c = column + warp_column + 8 * j + lane % 4 * 2 + e % 2;
        if (r < p.m && c < p.n)
          p.y[static_cast<std::int64_t>(r) * p.n + c] =
              store<BFloat16>(fmaxf(sums[i][j][e] + load(p.bias[c]), 0));
      }
}

}  // namespace naive_to_fast
