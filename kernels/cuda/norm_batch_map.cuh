#pragma once
// How batch normalization's kernels (norm_batch.cuh) divide a tensor, and what the elementwise ones compute
// from the numbers of a channel.
#include <algorithm>
#include <cstdint>

#include "tapestry/kernels/cuda/map.cuh"
#include "tapestry/kernels/cuda/sums.cuh"

namespace tapestry::kernels::cuda {

inline constexpr int kChannelThreads = 256;
/// The number of packs of each input that a thread has in flight: four loads of 16 bytes. With two blocks per
/// SM, this hides the memory latency.
inline constexpr int kBatch = 4;

/// The sizes of an (n, c, l) tensor, counted in packs of V elements. Packs lie along the channels in column
/// kernels, so `c` is a number of packs. They lie along l in plane kernels, so `l` is a number of packs.
struct ChannelShape {
  std::int64_t n, c, l;
  std::int64_t chunk;  // work per block: rows (columns) or packs of one channel (planes)
  int width;           // columns: packs side by side in a block, a power of 2
  int tiles;           // columns: blocks side by side
  Divisor plane, channels;
};

/// The packs of one thread of a column kernel: one column, in groups of kBatch consecutive rows. Consecutive
/// rows let Op::add() reduce a whole group at once.
struct ColumnPlace {
  std::int64_t chunk, column, row,
      end;   // row: first row of this thread's first group; end: end of the block's rows
  int step;  // rows from one group of this thread to its next
  bool inside;
  __device__ explicit ColumnPlace(const ChannelShape& s) {
    const int thread = static_cast<int>(threadIdx.x), tile = static_cast<int>(blockIdx.x % s.tiles);
    chunk = blockIdx.x / s.tiles;
    column = static_cast<std::int64_t>(tile) * s.width + thread % s.width;
    step = kChannelThreads / s.width * kBatch;
    row = chunk * s.chunk + thread / s.width * kBatch;
    end = std::min((chunk + 1) * s.chunk, s.n);
    inside = column < s.c;
  }
};

template <int V, class T>
__device__ __forceinline__ Pack<T, V> load_pack(const T* p) {
  return *reinterpret_cast<const Pack<T, V>*>(p);
}
template <class T, int V>
__device__ __forceinline__ void store_pack(T* p, const float (&x)[V]) {
  Pack<T, V> pack;
#pragma unroll
  for (int i = 0; i < V; ++i) pack.v[i] = store<T>(x[i]);
  *reinterpret_cast<Pack<T, V>*>(p) = pack;
}

/// Computes y = (x - mean) inv_std weight + bias + residual, with a relu at the end if `relu` is set. mean,
/// weight, bias and residual may be null.
template <class T>
struct MapNormal {
  using Type = T;
  static constexpr int kInputs = 2;
  static constexpr bool kLastMayBeNull = true;
  const T* in[2];  // x, residual
  T* out;
  const float *mean, *inv_std;
  const T *weight, *bias;
  bool relu;
  struct Channel {
    float mean, scale, shift;
  };
  __device__ Channel channel(std::int64_t c) const {
    return {mean ? mean[c] : 0.0f, weight ? inv_std[c] * load(weight[c]) : inv_std[c],
            bias ? load(bias[c]) : 0.0f};
  }
  __device__ float result(const Channel& c, const float (&x)[2]) const {
    float y = (x[0] - c.mean) * c.scale + c.shift;
    if (in[1]) y += x[1];
    return relu && y < 0 ? 0.0f : y;
  }
};
/// Computes dx in training mode: dx = slope dy - centred (x - mean) - offset. slope, centred and offset are
/// numbers per channel. The last two terms are the gradient through the batch statistics. dy counts as 0
/// where the result of relu is not positive; `also`, unless it is null, receives that gradient.
template <class T>
struct MapGradient {
  using Type = T;
  static constexpr int kInputs = 3;
  static constexpr bool kLastMayBeNull = true;
  const T* in[3];  // dy, x, and the result of relu, which may be null
  T* out;
  const float *mean, *slope, *centred, *offset;
  T* also;
  struct Channel {
    float mean, slope, centred, offset;
  };
  __device__ Channel channel(std::int64_t c) const { return {mean[c], slope[c], centred[c], offset[c]}; }
  __device__ float counted(const float (&x)[3]) const { return in[2] && x[2] <= 0 ? 0.0f : x[0]; }
  __device__ float result(const Channel& c, const float (&x)[3]) const {
    return c.slope * counted(x) - c.centred * (x[1] - c.mean) - c.offset;
  }
};

}  // namespace tapestry::kernels::cuda
