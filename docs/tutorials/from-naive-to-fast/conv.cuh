#pragma once
// A convolution with stride 1 in three versions: x is (n, h, w, c), weight is (k, r, s, c), and y is (n, h',
// w', k) with h' = h + 2 padding - r + 1, all contiguous. The page docs/tutorials/from-naive-to-fast.md
// explains the versions.
#include <cstdint>

#include "tapestry/docs/tutorials/from-naive-to-fast/linear.cuh"

namespace naive_to_fast {

struct Conv {
  const float *x, *weight;
  float* y;
  int n, h, w, c, k, r, s, padding;
  __host__ __device__ int out_h() const { return h + 2 * padding - r + 1; }
  __host__ __device__ int out_w() const { return w + 2 * padding - s + 1; }
  __host__ __device__ int pixels() const { return n * out_h() * out_w(); }
};

/// One thread per output: grid (pixels * k / 128, rounded up), block (128).
template <class = void>
__global__ void __launch_bounds__(128) conv_thread_per_output(Conv p) {
  const int at = static_cast<int>(blockIdx.x * 128 + threadIdx.x);
  if (at >= p.pixels() * p.k) return;
  const int k = at % p.k, pixel = at / p.k;
  const int ow = pixel % p.out_w(), oh = pixel / p.out_w() % p.out_h(), n = pixel / p.out_w() / p.out_h();
  float sum = 0;
  for (int r = 0; r < p.r; ++r)
    for (int s = 0; s < p.s; ++s) {
      const int h = oh + r - p.padding, w = ow + s - p.padding;
      if (h < 0 || h >= p.h || w < 0 || w >= p.w) continue;
      const float* const x = p.x + ((static_cast<std::int64_t>(n) * p.h + h) * p.w + w) * p.c;
      const float* const weight = p.weight + ((static_cast<std::int64_t>(k) * p.r + r) * p.s + s) * p.c;
      for (int c = 0; c < p.c; ++c) sum = fmaf(x[c], weight[c], sum);
    }
  p.y[at] = sum;
}

/// Stores the sums of a block's 64 pixels and 128 output channels.
__device__ __forceinline__ void store_tile(const Conv& p, const ThreadTile& tile, int pixel, int channel) {
#pragma unroll
  for (int i = 0; i < 8; ++i)
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const int row = pixel + tile.row + tile.row_at(i), k = channel + tile.column + tile.column_at(j);
      if (row < p.pixels() && k < p.k) p.y[static_cast<std::int64_t>(row) * p.k + k] = tile.sums[i][j];
    }
}

/// A product of matrices whose left operand is never stored: its rows are pixels, and its columns are (r, s,
/// c). Grid (k / 128, pixels / 64, both rounded up), block (128).
template <class = void>
__global__ void __launch_bounds__(128) conv_implicit_gemm(Conv p) {
  constexpr int kDepth = 16;
  __shared__ Quad x_packs[kDepth * 68 / 4];
  __shared__ Quad w_packs[kDepth * 132 / 4];
  float *const x_tile = x_packs[0].v, *const w_tile = w_packs[0].v;
  const int t = static_cast<int>(threadIdx.x), depth = p.r * p.s * p.c;
  const int pixel = static_cast<int>(blockIdx.y) * 64, channel = static_cast<int>(blockIdx.x) * 128;
  ThreadTile tile;
  for (int d = 0; d < depth; d += kDepth) {
    const int own = d + t % kDepth;
    const int c = own % p.c, s = own / p.c % p.s, r = own / p.c / p.s;
#pragma unroll
    for (int i = t / kDepth; i < 64; i += 8) {
      const int row = pixel + i;
      const int w = row % p.out_w() + s - p.padding, h = row / p.out_w() % p.out_h() + r - p.padding;
      const int n = row / p.out_w() / p.out_h();
      const bool has = own < depth && row < p.pixels() && h >= 0 && h < p.h && w >= 0 && w < p.w;
      x_tile[t % kDepth * 68 + i] =
          has ? p.x[((static_cast<std::int64_t>(n) * p.h + h) * p.w + w) * p.c + c] : 0;
    }
#pragma unroll
    for (int i = t / kDepth; i < 128; i += 8) {
      const bool has = own < depth && channel + i < p.k;
      w_tile[t % kDepth * 132 + i] = has ? p.weight[static_cast<std::int64_t>(channel + i) * depth + own] : 0;
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kDepth; ++i) tile.add(x_tile + i * 68, w_tile + i * 132);
    __syncthreads();
  }
  store_tile(p, tile, pixel, channel);
}

/// As conv_implicit_gemm, without divisions in the loop. c must be a multiple of 16, so that the 16 steps of
/// a tile belong to one (r, s), and x and weight must be aligned to 16 bytes.
template <class = void>
__global__ void __launch_bounds__(128) conv_hoisted(Conv p) {
  constexpr int kDepth = 16;
  __shared__ Quad x_packs[kDepth * 68 / 4];
  __shared__ Quad w_packs[kDepth * 132 / 4];
  float *const x_tile = x_packs[0].v, *const w_tile = w_packs[0].v;
  const int t = static_cast<int>(threadIdx.x);
  const int pixel = static_cast<int>(blockIdx.y) * 64, channel = static_cast<int>(blockIdx.x) * 128;
  // A thread loads a pack of 4 channels, of 2 pixels and of 4 output channels. The pixels' places do not
  // change.
  const int own_c = t % 4 * 4;
  int h[2], w[2];
  const float* x[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int row = pixel + t / 4 + 32 * i, n = row / p.out_w() / p.out_h();
    w[i] = row % p.out_w() - p.padding;
    // A pixel beyond the last one is outside the image for every r.
    h[i] = row < p.pixels() ? row / p.out_w() % p.out_h() - p.padding : -p.r;
    x[i] = p.x + ((static_cast<std::int64_t>(n) * p.h + h[i]) * p.w + w[i]) * p.c + own_c;
  }
  const float* weight = p.weight + static_cast<std::int64_t>(channel + t / 4) * p.r * p.s * p.c + own_c;
  ThreadTile tile;
  for (int r = 0; r < p.r; ++r)
    for (int s = 0; s < p.s; ++s) {
      const std::int64_t shift = (static_cast<std::int64_t>(r) * p.w + s) * p.c;
      for (int c = 0; c < p.c; c += kDepth, weight += kDepth) {
        const auto put = [&](float* to, int pitch, const Quad& pack) {
#pragma unroll
          for (int i = 0; i < 4; ++i) to[(own_c + i) * pitch] = pack.v[i];
        };
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const bool has = h[i] + r >= 0 && h[i] + r < p.h && w[i] + s >= 0 && w[i] + s < p.w;
          put(x_tile + t / 4 + 32 * i, 68, pack_or<4>(x[i] + shift + c, has, 0.0f));
        }
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const bool has = channel + t / 4 + 32 * i < p.k;
          put(w_tile + t / 4 + 32 * i, 132,
              pack_or<4>(weight + static_cast<std::int64_t>(32 * i) * p.r * p.s * p.c, has, 0.0f));
        }
        __syncthreads();
#pragma unroll
        for (int i = 0; i < kDepth; ++i) tile.add(x_tile + i * 68, w_tile + i * 132);
        __syncthreads();
      }
    }
  store_tile(p, tile, pixel, channel);
}

}  // namespace naive_to_fast
