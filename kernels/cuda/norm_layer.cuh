#pragma once
// Layer normalization and RMS normalization. Rows that fit into registers are read from memory once:
//
//   layer_norm_rows, layer_norm_backward_rows           up to 16384 elements (8192 in backward); short rows
//                                                       use one warp, longer rows one block
//   layer_norm_streamed, layer_norm_backward_streamed   any length; the second and third read hit in cache
//
// All kernels use 16-byte accesses (V elements) if rows are aligned, else scalar accesses.
//
// dweight and dbias are sums over rows, computed in two stages: each block sums a range of rows, then
// add_row_parts() adds the results of the blocks in a fixed order.
//
// RMS normalization is layer normalization with a mean of 0. It runs the same kernels with a null `mean`: the
// branch is the same for all threads of a launch and costs nothing beside the memory accesses, while kernels
// of its own would double the time to compile this file.
#include <algorithm>
#include <cmath>

#include "tapestry/core/error.h"
#include "tapestry/kernels/cuda/sums.cuh"
#include "tapestry/kernels/ops/norm.h"

namespace tapestry::kernels::cuda {

/// Sums over the kThreads threads of a row: one warp, or the whole block (see sum_block()).
template <int kThreads, int K>
__device__ __forceinline__ void sum_row(float (&s)[K], float (&parts)[K][kThreads / 32]) {
  if constexpr (kThreads == 32) sum_warp(s);
  else sum_block<kThreads>(s, parts);
}
/// Rows of one warp are grouped by four into a block.
constexpr int block_threads(int row_threads) { return row_threads == 32 ? 128 : row_threads; }

template <class T>
struct LayerNormRows {
  std::int64_t rows;
  int n;
  const T *x, *weight, *bias;
  float eps;
  T* y;
  float *mean, *inv_std;  // a null mean stands for the mean 0
  const T* residual;      // may be null; else sum = x + residual takes the place of x
  T* sum;
};

/// Stores x + residual at `at` of `sum`, and replaces x by it.
template <int V, class T>
__device__ __forceinline__ void add_residual(const LayerNormRows<T>& a, std::int64_t at, float (&x)[V]) {
  const auto residual = unpacked(*reinterpret_cast<const Pack<T, V>*>(a.residual + at));
  Pack<T, V> sum;
#pragma unroll
  for (int j = 0; j < V; ++j) {
    sum.v[j] = store<T>(x[j] + residual.v[j]);
    x[j] = load(sum.v[j]);
  }
  *reinterpret_cast<Pack<T, V>*>(a.sum + at) = sum;
}

/// The number of resident threads per SM that a kernel is compiled for (launch bounds). With more of them,
/// other rows load while one waits for its data. 8 elements per thread take 32 registers per thread, 16
/// elements take 48. More elements, or scalar loads with an address each, take 64.
constexpr int threads_per_sm(int elements, int pack) {
  if (pack == 1 || elements > 16) return 1024;
  return elements > 8 ? 1280 : 2048;
}

/// Elements map to threads as in softmax.cuh.
template <class T, int kThreads, int kElements, int V>
__global__ void __launch_bounds__(block_threads(kThreads),
                                  threads_per_sm(kElements, V) / block_threads(kThreads))
    layer_norm_rows(LayerNormRows<T> a) {
  static_assert(kElements % V == 0);
  const std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * blockDim.y + threadIdx.y;
  if (row >= a.rows)
    return;  // uniform over the warp, and over larger blocks, so no barrier is skipped by some threads
  __shared__ float parts[2][1][kThreads / 32];
  const int thread = static_cast<int>(threadIdx.x);
  const T* const in = a.x + row * a.n;
  float x[kElements];
  float sum[1] = {0}, squares[1] = {0};
#pragma unroll
  for (int i = 0; i < kElements; i += V) {
    const int at = (i / V * kThreads + thread) * V;
    auto own = unpacked(pack_or<V>(in + at, at < a.n, T()));
    if (a.residual && at < a.n) add_residual<V>(a, row * a.n + at, own.v);
#pragma unroll
    for (int j = 0; j < V; ++j) {
      x[i + j] = own.v[j];
      sum[0] += x[i + j];
    }
  }
  if (a.mean) sum_row<kThreads>(sum, parts[0]);
  const float mean = a.mean ? sum[0] / static_cast<float>(a.n) : 0.0f;
#pragma unroll
  for (int i = 0; i < kElements; i += V) {
    if ((i / V * kThreads + thread) * V >= a.n) break;
#pragma unroll
    for (int j = 0; j < V; ++j) {
      x[i + j] -= mean;
      squares[0] += x[i + j] * x[i + j];
    }
  }
  sum_row<kThreads>(squares, parts[1]);
  const float inv_std = 1.0f / sqrtf(squares[0] / static_cast<float>(a.n) + a.eps);
  if (thread == 0) {
    if (a.mean) a.mean[row] = mean;
    a.inv_std[row] = inv_std;
  }
#pragma unroll
  for (int i = 0; i < kElements; i += V) {
    const int at = (i / V * kThreads + thread) * V;
    if (at >= a.n) break;
#pragma unroll
    for (int j = 0; j < V; ++j) x[i + j] *= inv_std;
    if (a.weight) {
      const auto weight = unpacked(*reinterpret_cast<const Pack<T, V>*>(a.weight + at));
#pragma unroll
      for (int j = 0; j < V; ++j) x[i + j] *= weight.v[j];
    }
    if (a.bias) {
      const auto bias = unpacked(*reinterpret_cast<const Pack<T, V>*>(a.bias + at));
#pragma unroll
      for (int j = 0; j < V; ++j) x[i + j] += bias.v[j];
    }
    Pack<T, V> pack;
#pragma unroll
    for (int j = 0; j < V; ++j) pack.v[j] = store<T>(x[i + j]);
    *reinterpret_cast<Pack<T, V>*>(a.y + row * a.n + at) = pack;
  }
}

template <int V, class T>
__device__ __forceinline__ void read_floats(const T* from, float (&x)[V]) {
  const auto pack = unpacked(*reinterpret_cast<const Pack<T, V>*>(from));
#pragma unroll
  for (int j = 0; j < V; ++j) x[j] = pack.v[j];
}
template <int V, class T>
__device__ __forceinline__ void write_floats(T* to, const float (&x)[V]) {
  Pack<T, V> pack;
#pragma unroll
  for (int j = 0; j < V; ++j) pack.v[j] = store<T>(x[j]);
  *reinterpret_cast<Pack<T, V>*>(to) = pack;
}
template <int V, class T>
__device__ __forceinline__ void add_floats(const T* from, float (&x)[V]) {
  const auto pack = unpacked(*reinterpret_cast<const Pack<T, V>*>(from));
#pragma unroll
  for (int j = 0; j < V; ++j) x[j] += pack.v[j];
}
/// V elements of weight or bias at `at`; `otherwise` if the array is null.
template <int V, class T>
__device__ __forceinline__ void read_affine(const T* from, int at, float otherwise, float (&x)[V]) {
  if (from) return read_floats<V>(from + at, x);
#pragma unroll
  for (int j = 0; j < V; ++j) x[j] = otherwise;
}

inline constexpr int kStreamThreads = 512;

template <class T, int V>
__global__ void __launch_bounds__(kStreamThreads, 2) layer_norm_streamed(LayerNormRows<T> a) {
  __shared__ float parts[2][1][kStreamThreads / 32];
  const std::int64_t row = blockIdx.x;
  const int thread = static_cast<int>(threadIdx.x);
  const T* in = a.x + row * a.n;
  float sum[1] = {0}, squares[1] = {0}, x[V];
  if (a.residual) {
    for (int i = thread * V; i < a.n; i += kStreamThreads * V) {
      read_floats<V>(in + i, x);
      add_residual<V>(a, row * a.n + i, x);
    }
    in = a.sum + row * a.n;  // each thread reads what it has written itself
  }
  if (a.mean) {
    for (int i = thread * V; i < a.n; i += kStreamThreads * V) {
      read_floats<V>(in + i, x);
#pragma unroll
      for (int j = 0; j < V; ++j) sum[0] += x[j];
    }
    sum_row<kStreamThreads>(sum, parts[0]);
  }
  const float mean = sum[0] / static_cast<float>(a.n);
  for (int i = thread * V; i < a.n; i += kStreamThreads * V) {
    read_floats<V>(in + i, x);
#pragma unroll
    for (int j = 0; j < V; ++j) squares[0] += (x[j] - mean) * (x[j] - mean);
  }
  sum_row<kStreamThreads>(squares, parts[1]);
  const float inv_std = 1.0f / sqrtf(squares[0] / static_cast<float>(a.n) + a.eps);
  if (thread == 0) {
    if (a.mean) a.mean[row] = mean;
    a.inv_std[row] = inv_std;
  }
  for (int i = thread * V; i < a.n; i += kStreamThreads * V) {
    float weight[V], bias[V];
    read_floats<V>(in + i, x);
    read_affine<V>(a.weight, i, 1.0f, weight);
    read_affine<V>(a.bias, i, 0.0f, bias);
#pragma unroll
    for (int j = 0; j < V; ++j) x[j] = (x[j] - mean) * inv_std * weight[j] + bias[j];
    write_floats<V>(a.y + row * a.n + i, x);
  }
}

template <class T>
struct LayerNormGrads {
  std::int64_t rows, chunk;  // chunk: rows per block
  int n;
  const T *dy, *x, *weight;
  const float *mean, *inv_std;  // a null mean stands for the mean 0, through which no gradient flows
  const T* dsum;                // may be null; else it is added to dx
  T* dx;                        // may be null
  float* parts;  // may be null; (blocks, 2, n), the partial dweight and dbias; no dbias without a mean
};

/// Each thread accumulates dweight and dbias of its columns in registers, over the rows of its block. At the
/// end the warps of a block add up their sums one after another. kBlocks is the number of blocks per SM. It
/// follows from the registers: with 8 elements per thread, x, dy and the two sums take 32 of the 64 registers
/// that a thread has if 1024 threads are resident. Scalar loads (V = 1) need more addresses, so only 768
/// threads are resident. With 16 elements a thread has 128 registers, and 512 threads are resident.
template <class T, int kThreads, int kElements, int V, int kBlocks>
__global__ void __launch_bounds__(block_threads(kThreads), kBlocks)
    layer_norm_backward_rows(LayerNormGrads<T> a) {
  static_assert(kElements % V == 0);
  constexpr int kPacks = kElements / V;
  __shared__ float parts[2][2][kThreads / 32];
  const int thread = static_cast<int>(threadIdx.x);
  const std::int64_t begin = static_cast<std::int64_t>(blockIdx.x) * a.chunk;
  const std::int64_t end = std::min(begin + a.chunk, a.rows);
  const float scale = 1.0f / static_cast<float>(a.n);
  const auto at = [&](int p) { return (p * kThreads + thread) * V; };
  float dweight[kElements] = {}, dbias[kElements] = {};
  int turn = 0;
  for (std::int64_t row = begin + threadIdx.y; row < end; row += blockDim.y, turn ^= 1) {
    Pack<T, V> x[kPacks], dy[kPacks];
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      if constexpr (V == 1) {  // pack_or() would take too many registers for so many addresses
        x[p] = dy[p] = Pack<T, V>{};
        if (at(p) >= a.n) continue;
        x[p].v[0] = a.x[row * a.n + at(p)];
        dy[p].v[0] = a.dy[row * a.n + at(p)];
      } else {
        x[p] = pack_or<V>(a.x + row * a.n + at(p), at(p) < a.n, T());
        dy[p] = pack_or<V>(a.dy + row * a.n + at(p), at(p) < a.n, T());
      }
    }
    const float mean = a.mean ? a.mean[row] : 0.0f, inv_std = a.inv_std[row];
    const auto read_weight = [&](int p) {
      Pack<T, V> w;
      if (a.weight && at(p) < a.n) w = *reinterpret_cast<const Pack<T, V>*>(a.weight + at(p));
      else
#pragma unroll
        for (int j = 0; j < V; ++j) w.v[j] = store<T>(1.0f);
      return unpacked(w);
    };
    float sums[2] = {};  // sum of g = dy weight, and sum of g times the normalized row
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      const auto w = read_weight(p), own = unpacked(x[p]), grad = unpacked(dy[p]);
#pragma unroll
      for (int j = 0; j < V; ++j) {
        const float normal = (own.v[j] - mean) * inv_std, d = grad.v[j], g = d * w.v[j];
        sums[0] += g;
        sums[1] += g * normal;
        dweight[p * V + j] += d * normal;
        dbias[p * V + j] += d;
      }
    }
    if (!a.dx) continue;
    sum_row<kThreads>(sums, parts[turn]);
    const float plain = a.mean ? sums[0] * scale : 0.0f, along = sums[1] * scale;
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      if (at(p) >= a.n) break;
      const auto w = read_weight(p), own = unpacked(x[p]), grad = unpacked(dy[p]);
      Pack<T, V> result;
      float dx[V];
#pragma unroll
      for (int j = 0; j < V; ++j) {
        const float normal = (own.v[j] - mean) * inv_std, g = grad.v[j] * w.v[j];
        dx[j] = inv_std * (g - plain - normal * along);
      }
      if (a.dsum) add_floats<V>(a.dsum + row * a.n + at(p), dx);
#pragma unroll
      for (int j = 0; j < V; ++j) result.v[j] = store<T>(dx[j]);
      *reinterpret_cast<Pack<T, V>*>(a.dx + row * a.n + at(p)) = result;
    }
  }
  if (!a.parts) return;
  float* const out = a.parts + static_cast<std::int64_t>(blockIdx.x) * 2 * a.n;
  if constexpr (kThreads == 32) {
    __shared__ float totals[2][32 * kElements];
    for (unsigned warp = 0; warp < blockDim.y; ++warp) {
      if (threadIdx.y == warp)
#pragma unroll
        for (int i = 0; i < kElements; ++i) {  // adjacent threads use adjacent words: no bank conflicts
          float* const to = &totals[0][i * 32 + thread];
          to[0] = (warp ? to[0] : 0.0f) + dweight[i];
          to[32 * kElements] = (warp ? to[32 * kElements] : 0.0f) + dbias[i];
        }
      __syncthreads();
    }
    if (threadIdx.y >= (a.mean ? 2 : 1)) return;  // one warp writes dweight, another dbias
#pragma unroll
    for (int i = 0; i < kElements; ++i) {
      const int column = at(i / V) + i % V;
      if (column < a.n)
        out[static_cast<int>(threadIdx.y) * a.n + column] = totals[threadIdx.y][i * 32 + thread];
    }
  } else {
#pragma unroll
    for (int i = 0; i < kElements; ++i) {
      const int column = at(i / V) + i % V;
      if (column >= a.n) continue;
      out[column] = dweight[i];
      if (a.mean) out[a.n + column] = dbias[i];
    }
  }
}

/// Each block accumulates its dweight and dbias in global memory. The same thread always handles a column, so
/// no atomics are needed.
template <class T, int V>
__global__ void __launch_bounds__(kStreamThreads, 2) layer_norm_backward_streamed(LayerNormGrads<T> a) {
  __shared__ float parts[2][2][kStreamThreads / 32];
  const int thread = static_cast<int>(threadIdx.x);
  const std::int64_t begin = static_cast<std::int64_t>(blockIdx.x) * a.chunk;
  const std::int64_t end = std::min(begin + a.chunk, a.rows);
  const float scale = 1.0f / static_cast<float>(a.n);
  float* const out = a.parts ? a.parts + static_cast<std::int64_t>(blockIdx.x) * 2 * a.n : nullptr;
  int turn = 0;
  for (std::int64_t row = begin; row < end; ++row, turn ^= 1) {
    const T *const in = a.x + row * a.n, *const grad = a.dy + row * a.n;
    const float mean = a.mean ? a.mean[row] : 0.0f, inv_std = a.inv_std[row];
    float sums[2] = {}, x[V], dy[V], weight[V];
    for (int i = thread * V; i < a.n; i += kStreamThreads * V) {
      read_floats<V>(in + i, x);
      read_floats<V>(grad + i, dy);
      read_affine<V>(a.weight, i, 1.0f, weight);
#pragma unroll
      for (int j = 0; j < V; ++j) {
        x[j] = (x[j] - mean) * inv_std;
        sums[0] += dy[j] * weight[j];
        sums[1] += dy[j] * weight[j] * x[j];
      }
      if (!out) continue;
      float dweight[V] = {}, dbias[V] = {};
      if (row > begin) {
        read_floats<V>(out + i, dweight);
        if (a.mean) read_floats<V>(out + a.n + i, dbias);
      }
#pragma unroll
      for (int j = 0; j < V; ++j) {
        dweight[j] += dy[j] * x[j];
        dbias[j] += dy[j];
      }
      write_floats<V>(out + i, dweight);
      if (a.mean) write_floats<V>(out + a.n + i, dbias);
    }
    if (!a.dx) continue;
    sum_row<kStreamThreads>(sums, parts[turn]);
    const float plain = a.mean ? sums[0] * scale : 0.0f, along = sums[1] * scale;
    for (int i = thread * V; i < a.n; i += kStreamThreads * V) {
      read_floats<V>(in + i, x);
      read_floats<V>(grad + i, dy);
      read_affine<V>(a.weight, i, 1.0f, weight);
#pragma unroll
      for (int j = 0; j < V; ++j)
        x[j] = inv_std * (dy[j] * weight[j] - plain - (x[j] - mean) * inv_std * along);
      if (a.dsum) add_floats<V>(a.dsum + row * a.n + i, x);
      write_floats<V>(a.dx + row * a.n + i, x);
    }
  }
}

/// The number of threads that share a column in add_row_parts(), which is its blockDim.y. With many parts,
/// more threads hide the latency of the loads, since short rows give few blocks.
inline constexpr unsigned kPartThreads = 32;
inline unsigned part_threads(int count) {
  return count > 64 ? kPartThreads : static_cast<unsigned>(std::clamp(count, 1, 8));
}

/// Block (32, y). Adds the `count` rows of `parts` (count, 2, n): columns [0, n) give dweight, the others
/// dbias. Either output may be null.
template <class T>
__global__ void __launch_bounds__(32 * kPartThreads)
    add_row_parts(const float* parts, int count, int n, T* dweight, T* dbias) {
  __shared__ float sums[kPartThreads][32];
  const std::int64_t column = static_cast<std::int64_t>(blockIdx.x) * 32 + threadIdx.x, width = 2LL * n;
  float sum = 0;
  if (column < (dbias ? width : n))
    for (int i = static_cast<int>(threadIdx.y); i < count; i += static_cast<int>(blockDim.y))
      sum += parts[i * width + column];
  sums[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y != 0 || column >= width) return;
  for (unsigned i = 1; i < blockDim.y; ++i) sum += sums[i][threadIdx.x];
  T* const out = column < n ? dweight : dbias;
  if (out) out[column < n ? column : column - n] = store<T>(sum);
}

// ---- launches

/// Converts a row length to int. Throws if it is too long.
inline int row_length(const char* op, std::int64_t n) {
  constexpr std::int64_t kMost = std::int64_t{1} << 30;
  check(n <= kMost, "[", op, "] rows of ", n, " elements are too long for a CUDA kernel; use at most ",
        kMost);
  return static_cast<int>(n);
}

inline unsigned norm_blocks(std::int64_t n, std::int64_t each) {
  return static_cast<unsigned>((n + each - 1) / each);
}

/// Launches the forward kernel for this row length. V is the number of elements per access.
template <class T, int V>
void launch_layer_norm_rows(const LayerNormRows<T>& a, cudaStream_t stream) {
  const dim3 warps(32, 4);
  const unsigned by_warps = norm_blocks(a.rows, 4), by_blocks = static_cast<unsigned>(a.rows);
  const auto go = [&](auto kernel, unsigned blocks, dim3 block) {
    launch(kernel, blocks, block, 0, stream, a);
  };
  if (a.n <= 32 * 8) return go(&layer_norm_rows<T, 32, 8, V>, by_warps, warps);
  if (a.n <= 1024) {
    if constexpr (V > 1) return go(&layer_norm_rows<T, 32, 32, V>, by_warps, warps);
    else
      return go(&layer_norm_rows<T, 128, 8, V>, by_blocks,
                128);  // 32 addresses would take too many registers
  }
  if (a.n <= 128 * 16) go(&layer_norm_rows<T, 128, 16, V>, by_blocks, 128);
  else if (a.n <= 256 * 16) go(&layer_norm_rows<T, 256, 16, V>, by_blocks, 256);
  else if (a.n <= 512 * 16) go(&layer_norm_rows<T, 512, 16, V>, by_blocks, 512);
  else if (a.n <= 1024 * 16) go(&layer_norm_rows<T, 1024, 16, V>, by_blocks, 1024);
  else go(&layer_norm_streamed<T, V>, by_blocks, kStreamThreads);
}

template <class T>
void launch_layer_norm(const LaunchContext& context, const LayerNormArgs& s) {
  if (s.rows * s.cols == 0) return;
  constexpr int V = 16 / sizeof(T);
  const LayerNormRows<T> a{.rows = s.rows,
                           .n = row_length(s.mean ? "layer_norm" : "rms_norm", s.cols),
                           .x = s.x.as<T>(),
                           .weight = s.weight.as<T>(),
                           .bias = s.bias.as<T>(),
                           .eps = static_cast<float>(s.eps),
                           .y = s.y.as<T>(),
                           .mean = s.mean.as<float>(),
                           .inv_std = s.inv_std.as<float>(),
                           .residual = s.residual.as<T>(),
                           .sum = s.sum.as<T>()};
  if (s.cols % V == 0 && aligned<T, V>(a.x) && aligned<T, V>(a.weight) && aligned<T, V>(a.bias) &&
      aligned<T, V>(a.y) && aligned<T, V>(a.residual) && aligned<T, V>(a.sum))
    launch_layer_norm_rows<T, V>(a, stream_of(context));
  else launch_layer_norm_rows<T, 1>(a, stream_of(context));
}

/// `multiprocessors` is the number of SMs that the rows are divided among.
template <class T, int V>
void launch_layer_norm_backward_rows(const LaunchContext& context, const LayerNormBackwardArgs& s,
                                     int multiprocessors) {
  const cudaStream_t stream = stream_of(context);
  const bool sums = s.dweight || s.dbias;
  // Launches up to `most` blocks per SM, each for an equal chunk of rows.
  const auto run = [&](auto kernel, dim3 block, int most) {
    const std::int64_t blocks_wanted = std::int64_t{multiprocessors} * most;
    const std::int64_t chunk = std::max<std::int64_t>(block.y, (s.rows + blocks_wanted - 1) / blocks_wanted);
    const unsigned blocks = norm_blocks(s.rows, chunk);
    const int count = static_cast<int>(blocks);
    const Scratch<float> parts(context.device, sums ? 2 * s.cols * count : 0);
    const LayerNormGrads<T> a{.rows = s.rows,
                              .chunk = chunk,
                              .n = row_length(s.mean ? "layer_norm" : "rms_norm", s.cols),
                              .dy = s.dy.as<T>(),
                              .x = s.x.as<T>(),
                              .weight = s.weight.as<T>(),
                              .mean = s.mean.as<float>(),
                              .inv_std = s.inv_std.as<float>(),
                              .dsum = s.dsum.as<T>(),
                              .dx = s.dx.as<T>(),
                              .parts = parts.data()};
    if (blocks > 0) launch(kernel, blocks, block, 0, stream, a);
    if (sums)
      launch(&add_row_parts<T>, norm_blocks(s.dbias ? 2 * s.cols : s.cols, 32), {32, part_threads(count)}, 0,
             stream, parts.data(), count, a.n, s.dweight.as<T>(), s.dbias.as<T>());
  };
  constexpr int kBlocks = V > 1 ? 8 : 6;
  if (s.cols <= 32 * 8) run(&layer_norm_backward_rows<T, 32, 8, V, kBlocks>, {32, 4}, kBlocks);
  else if (s.cols <= 128 * 8) run(&layer_norm_backward_rows<T, 128, 8, V, kBlocks>, 128, kBlocks);
  else if (s.cols <= 256 * 8) run(&layer_norm_backward_rows<T, 256, 8, V, kBlocks / 2>, 256, kBlocks / 2);
  else if (s.cols <= 256 * 16) run(&layer_norm_backward_rows<T, 256, 16, V, 2>, 256, 2);
  else if (s.cols <= 512 * 16) run(&layer_norm_backward_rows<T, 512, 16, V, 1>, 512, 1);
  else run(&layer_norm_backward_streamed<T, V>, kStreamThreads, 2);
}

template <class T>
void launch_layer_norm_backward(const LaunchContext& context, const LayerNormBackwardArgs& s,
                                int multiprocessors = 132) {
  if (s.cols == 0) return;
  constexpr int V = 16 / sizeof(T);
  if (s.cols % V == 0 && aligned<T, V>(s.x.address()) && aligned<T, V>(s.dy.address()) &&
      aligned<T, V>(s.weight.address()) && aligned<T, V>(s.dx.address()) && aligned<T, V>(s.dsum.address()))
    launch_layer_norm_backward_rows<T, V>(context, s, multiprocessors);
  else launch_layer_norm_backward_rows<T, 1>(context, s, multiprocessors);
}

}  // namespace tapestry::kernels::cuda
