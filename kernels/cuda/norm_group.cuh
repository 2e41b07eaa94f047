#pragma once
// Group normalization of a dense (n, c, l) or (n, l, c) tensor. One block normalizes one group of one sample
// and reads it twice; the second read hits in the L2 cache.
//
//   group_norm_groups            mean and variance of the group, then y
//   group_norm_backward_groups   sums over each channel of the group, then dx
//
// The sums of dy and of dy (x - mean) inv_std over each channel of each sample give the gradient through the
// mean and the variance. add_row_parts() adds them over the samples: that is dbias and dweight.
#include <algorithm>

#include "tapestry/kernels/cuda/norm_batch.cuh"
#include "tapestry/kernels/cuda/norm_layer.cuh"

namespace tapestry::kernels::cuda {

inline constexpr int kGroupThreads = 256, kGroupWarps = kGroupThreads / 32;
/// The number of resident blocks per SM, for a kernel that reads `inputs` arrays. A batch of packs of 8 is up
/// to 64 values per thread, which do not fit into the 64 registers that a thread has with four blocks. Two
/// arrays need two addresses for each pack.
constexpr int group_blocks(int pack, int inputs) { return pack > 4 ? 2 : 5 - inputs; }

/// The sizes of a group. Packs of V elements lie along l, or along the channels if they are adjacent. In that
/// direction sizes are counted in packs.
struct GroupSizes {
  int groups;       // of a sample
  int width, l, c;  // channels of a group, elements of a channel, channels of a sample
  Divisor inner;    // divides by the size of the direction in which elements are adjacent
  int split;        // warps that share a channel in backward of an (n, c, l) tensor, a power of 2
};

/// The group of a block. The packs of a group are numbered in the order of memory.
template <bool kLast, int V>
struct GroupPlace {
  const GroupSizes& s;
  int sample, group;
  __device__ explicit GroupPlace(const GroupSizes& sizes)
      : s(sizes),
        sample(static_cast<int>(blockIdx.x) / sizes.groups),
        group(static_cast<int>(blockIdx.x) - sample * sizes.groups) {}
  __device__ int size() const { return s.width * s.l; }
  /// The first element of pack i.
  __device__ std::int64_t offset(int i) const {
    if constexpr (!kLast) return (static_cast<std::int64_t>(blockIdx.x) * size() + i) * V;
    const int pixel = static_cast<int>(s.inner.divide(static_cast<unsigned>(i)));
    return offset(pixel, i - pixel * s.width);
  }
  /// The first element of the pack of channels `p` at a pixel, if channels are adjacent.
  __device__ std::int64_t offset(int pixel, int p) const {
    return ((static_cast<std::int64_t>(sample) * s.l + pixel) * s.c + group * s.width + p) * V;
  }
  /// The channel of the first element of pack i; if channels are adjacent, the others have the next channels.
  __device__ int channel(int i) const {
    const int outer = static_cast<int>(s.inner.divide(static_cast<unsigned>(i)));
    if constexpr (!kLast) return group * s.width + outer;
    return (group * s.width + i - outer * s.width) * V;
  }
};

/// The V elements of weight or bias of a pack whose first element has channel `c`.
template <bool kLast, int V, class T>
__device__ __forceinline__ void read_channels(const T* from, int c, float otherwise, float (&x)[V]) {
  if constexpr (kLast) return read_affine<V>(from, c, otherwise, x);
  const float value = from ? load(from[c]) : otherwise;
#pragma unroll
  for (int v = 0; v < V; ++v) x[v] = value;
}

template <class T>
struct GroupNormGroups {
  GroupSizes sizes;
  const T *x, *weight, *bias;
  float eps;
  T* y;
  float *mean, *inv_std, *var;  // var may be null
};

template <class T, int V, bool kLast>
__global__ void __launch_bounds__(kGroupThreads, group_blocks(V, 1)) group_norm_groups(GroupNormGroups<T> a) {
  using Op = MomentsOf<T>;
  const GroupPlace<kLast, V> place(a.sizes);
  const int thread = static_cast<int>(threadIdx.x), size = place.size();
  typename Op::State s{};
  float seen = 0;
  for (int i = thread; i < size; i += kBatch * kGroupThreads) {
    float x[1][kBatch * V];
    int count = 0;
#pragma unroll
    for (int b = 0; b < kBatch; ++b) {
      const int at = i + b * kGroupThreads;
      Pack<T, V> pack{};
      if (at < size) pack = load_pack<V>(a.x + place.offset(at)), count += V;
#pragma unroll
      for (int v = 0; v < V; ++v) x[0][b * V + v] = load(pack.v[v]);
    }
    Op::add(s, seen, {}, x, count);
    seen += static_cast<float>(count);
  }
  const auto all = merge_block<Counted<Op>, kGroupThreads>({seen, s});
  const float mean = all.s.mean, var = all.s.squares / all.count, inv_std = 1.0f / sqrtf(var + a.eps);
  if (thread == 0) {
    a.mean[blockIdx.x] = mean;
    a.inv_std[blockIdx.x] = inv_std;
    if (a.var) a.var[blockIdx.x] = var;
  }
  for (int i = thread; i < size; i += kBatch * kGroupThreads) {
    Pack<T, V> packs[kBatch];
#pragma unroll
    for (int b = 0; b < kBatch; ++b) {
      const int at = i + b * kGroupThreads;
      if (at < size) packs[b] = load_pack<V>(a.x + place.offset(at));
    }
#pragma unroll
    for (int b = 0; b < kBatch; ++b) {
      const int at = i + b * kGroupThreads;
      if (at >= size) break;
      float weight[V], bias[V], y[V];
      read_channels<kLast>(a.weight, place.channel(at), 1.0f, weight);
      read_channels<kLast>(a.bias, place.channel(at), 0.0f, bias);
#pragma unroll
      for (int v = 0; v < V; ++v) y[v] = (load(packs[b].v[v]) - mean) * inv_std * weight[v] + bias[v];
      store_pack(a.y + place.offset(at), y);
    }
  }
}

template <class T>
struct GroupNormGrads {
  GroupSizes sizes;
  const T *dy, *x, *weight;
  const float *mean, *inv_std;
  T* dx;         // may be null
  float* parts;  // (n, 2, c): the sums of dy (x - mean) inv_std and of dy over each channel of each sample
};

/// Writes the sums of a channel and adds its share to the sums of the group.
template <class T>
struct GroupSums {
  const GroupNormGrads<T>& a;
  float* parts;  // of the block's sample
  int channels;  // of a sample, in elements
  float (&sums)[2];
  __device__ void finish(int channel, float plain, float normal) const {
    parts[channel] = normal;
    parts[channels + channel] = plain;
    const float weight = a.weight ? load(a.weight[channel]) : 1.0f;
    sums[0] += weight * plain;
    sums[1] += weight * normal;
  }
};

/// Sums over the channels of an (n, c, l) tensor. A warp sums a channel, or `split` warps share it.
template <int V, class T>
__device__ __forceinline__ void sum_planes(const GroupPlace<false, V>& place, const GroupSums<T>& to,
                                           float mean, float inv_std) {
  __shared__ float shares[2][kGroupWarps];
  const GroupSizes& s = place.s;
  const int thread = static_cast<int>(threadIdx.x), warp = thread / 32, lane = thread % 32;
  const int length = (s.l + s.split - 1) / s.split;
  for (int item = warp; item < s.width * s.split; item += kGroupWarps) {
    const int channel = item / s.split, first = (item - channel * s.split) * length;
    const int begin = channel * s.l + std::min(first, s.l),
              end = channel * s.l + std::min(first + length, s.l);
    float sums[2] = {};
    for (int i = begin + lane; i < end; i += kBatch * 32) {
      Pack<T, V> x[kBatch], dy[kBatch];
#pragma unroll
      for (int b = 0; b < kBatch; ++b) {
        x[b] = dy[b] = Pack<T, V>{};
        if (i + b * 32 >= end) continue;
        x[b] = load_pack<V>(to.a.x + place.offset(i + b * 32));
        dy[b] = load_pack<V>(to.a.dy + place.offset(i + b * 32));
      }
#pragma unroll
      for (int b = 0; b < kBatch; ++b)
#pragma unroll
        for (int v = 0; v < V; ++v) {
          const float d = load(dy[b].v[v]);  // 0 behind the end
          sums[0] += d;
          if (i + b * 32 < end) sums[1] += d * ((load(x[b].v[v]) - mean) * inv_std);
        }
    }
    sum_warp(sums);
    if (lane != 0) continue;
    if (s.split == 1) {
      to.finish(place.group * s.width + channel, sums[0], sums[1]);
    } else {
      shares[0][item] = sums[0];
      shares[1][item] = sums[1];
    }
  }
  if (s.split == 1) return;
  __syncthreads();
  if (thread >= s.width) return;
  float sums[2] = {};
  for (int i = thread * s.split; i < (thread + 1) * s.split; ++i)
#pragma unroll
    for (int k = 0; k < 2; ++k) sums[k] += shares[k][i];
  to.finish(place.group * s.width + thread, sums[0], sums[1]);
}

/// Sums over the channels of an (n, l, c) tensor. A thread has V adjacent channels, and adjacent threads have
/// adjacent packs of channels, up to the width of the group; the other threads have other pixels.
template <int V, class T>
__device__ __forceinline__ void sum_columns(const GroupPlace<true, V>& place, const GroupSums<T>& to,
                                            float mean, float inv_std) {
  __shared__ float shares[2][V][kGroupThreads];
  const GroupSizes& s = place.s;
  const int thread = static_cast<int>(threadIdx.x), tile = s.width < kGroupThreads ? s.width : kGroupThreads;
  const int rows = kGroupThreads / tile, row = thread / tile;
  for (int first = 0; first < s.width; first += tile) {
    const int p = first + thread - row * tile;
    const bool inside = row < rows && p < s.width;
    float plain[V] = {}, normal[V] = {};
    if (inside)
      for (int pixel = row; pixel < s.l; pixel += kBatch * rows) {
        Pack<T, V> x[kBatch], dy[kBatch];
#pragma unroll
        for (int b = 0; b < kBatch; ++b) {
          if (pixel + b * rows >= s.l) break;
          x[b] = load_pack<V>(to.a.x + place.offset(pixel + b * rows, p));
          dy[b] = load_pack<V>(to.a.dy + place.offset(pixel + b * rows, p));
        }
#pragma unroll
        for (int b = 0; b < kBatch; ++b) {
          if (pixel + b * rows >= s.l) break;
#pragma unroll
          for (int v = 0; v < V; ++v) {
            const float d = load(dy[b].v[v]);
            plain[v] += d;
            normal[v] += d * ((load(x[b].v[v]) - mean) * inv_std);
          }
        }
      }
#pragma unroll
    for (int v = 0; v < V; ++v) {
      shares[0][v][thread] = plain[v];
      shares[1][v][thread] = normal[v];
    }
    __syncthreads();
    for (int count = rows; count > 1;) {
      const int half = (count + 1) / 2, other = thread + half * tile;
      if (row + half < count)
#pragma unroll
        for (int v = 0; v < V; ++v)
#pragma unroll
          for (int k = 0; k < 2; ++k) shares[k][v][thread] += shares[k][v][other];
      count = half;
      __syncthreads();
    }
    if (inside && row == 0)
#pragma unroll
      for (int v = 0; v < V; ++v)
        to.finish((place.group * s.width + p) * V + v, shares[0][v][thread], shares[1][v][thread]);
    __syncthreads();  // before the next tile overwrites `shares`
  }
}

template <class T, int V, bool kLast>
__global__ void __launch_bounds__(kGroupThreads, group_blocks(V, 2))
    group_norm_backward_groups(GroupNormGrads<T> a) {
  __shared__ float warps[2][kGroupWarps];
  const GroupPlace<kLast, V> place(a.sizes);
  const int thread = static_cast<int>(threadIdx.x), size = place.size();
  const int channels = a.sizes.c * (kLast ? V : 1);
  const float mean = a.mean[blockIdx.x], inv_std = a.inv_std[blockIdx.x];
  float sums[2] = {};  // of dy weight, and of dy weight times the normalized x
  const GroupSums<T> to{a, a.parts + std::int64_t{2} * place.sample * channels, channels, sums};
  if constexpr (kLast) sum_columns<V, T>(place, to, mean, inv_std);
  else sum_planes<V, T>(place, to, mean, inv_std);
  if (!a.dx) return;
  sum_block<kGroupThreads>(sums, warps);
  const float scale = 1.0f / (static_cast<float>(size) * V);
  const float plain = sums[0] * scale, along = sums[1] * scale;
  for (int i = thread; i < size; i += kBatch * kGroupThreads) {
    Pack<T, V> x[kBatch], dy[kBatch];
#pragma unroll
    for (int b = 0; b < kBatch; ++b) {
      const int at = i + b * kGroupThreads;
      if (at >= size) break;
      x[b] = load_pack<V>(a.x + place.offset(at));
      dy[b] = load_pack<V>(a.dy + place.offset(at));
    }
#pragma unroll
    for (int b = 0; b < kBatch; ++b) {
      const int at = i + b * kGroupThreads;
      if (at >= size) break;
      float weight[V], dx[V];
      read_channels<kLast>(a.weight, place.channel(at), 1.0f, weight);
#pragma unroll
      for (int v = 0; v < V; ++v) {
        const float normal = (load(x[b].v[v]) - mean) * inv_std;
        dx[v] = inv_std * (load(dy[b].v[v]) * weight[v] - plain - normal * along);
      }
      store_pack(a.dx + place.offset(at), dx);
    }
  }
}

// ---- launches

template <int V>
GroupSizes group_sizes(const GroupNormShape& s) {
  constexpr std::int64_t kMost = std::int64_t{1} << 30;
  const std::int64_t width = s.c / s.groups;
  check(width * s.l <= kMost && s.c <= kMost && s.n * s.groups <= kMost, "[group_norm] ", s.n, " samples of ",
        s.groups, " groups of ", width * s.l, " elements are too many for a CUDA kernel; use at most ", kMost,
        " groups, and as many elements in each");
  GroupSizes sizes{.groups = static_cast<int>(s.groups),
                   .width = static_cast<int>(width),
                   .l = static_cast<int>(s.l),
                   .c = static_cast<int>(s.c)};
  if (s.channels_last) sizes.width /= V, sizes.c /= V;
  else sizes.l /= V;
  sizes.inner = Divisor(static_cast<unsigned>(s.channels_last ? sizes.width : sizes.l));
  sizes.split = 1;
  while (2 * sizes.split * sizes.width <= kGroupWarps) sizes.split *= 2;
  return sizes;
}

/// Calls go.operator()<V, kLast>() with V = 16 bytes if all arrays allow such accesses, else with V = 1.
template <class T, class Go>
void with_group_packs(const GroupNormShape& s, std::initializer_list<const void*> arrays, const Go& go) {
  constexpr int V = 16 / sizeof(T);
  const bool packs =
      (s.channels_last ? s.c / s.groups : s.l) % V == 0 &&
      std::all_of(arrays.begin(), arrays.end(), [](const void* p) { return aligned<T, V>(p); });
  if (s.channels_last) packs ? go.template operator()<V, true>() : go.template operator()<1, true>();
  else packs ? go.template operator()<V, false>() : go.template operator()<1, false>();
}

template <class T>
void launch_group_norm(const LaunchContext& context, const GroupNormArgs& s) {
  const GroupNormShape& shape = s.shape;
  if (shape.n * shape.c * shape.l == 0) return;
  with_group_packs<T>(shape, {s.x.address(), s.y.address(), s.weight.address(), s.bias.address()},
                      [&]<int V, bool kLast>() {
                        const GroupNormGroups<T> a{.sizes = group_sizes<V>(shape),
                                                   .x = s.x.as<T>(),
                                                   .weight = s.weight.as<T>(),
                                                   .bias = s.bias.as<T>(),
                                                   .eps = static_cast<float>(s.eps),
                                                   .y = s.y.as<T>(),
                                                   .mean = s.mean.as<float>(),
                                                   .inv_std = s.inv_std.as<float>(),
                                                   .var = s.var.as<float>()};
                        launch(&group_norm_groups<T, V, kLast>, static_cast<unsigned>(shape.n * shape.groups),
                               kGroupThreads, 0, stream_of(context), a);
                      });
}

template <class T>
void launch_group_norm_backward(const LaunchContext& context, const GroupNormBackwardArgs& s) {
  const GroupNormShape& shape = s.shape;
  if (shape.n * shape.c * shape.l == 0) return;
  const Scratch<float> parts(context.device, 2 * shape.n * shape.c);
  with_group_packs<T>(
      shape, {s.x.address(), s.dy.address(), s.dx.address(), s.weight.address()}, [&]<int V, bool kLast>() {
        const GroupNormGrads<T> a{.sizes = group_sizes<V>(shape),
                                  .dy = s.dy.as<T>(),
                                  .x = s.x.as<T>(),
                                  .weight = s.weight.as<T>(),
                                  .mean = s.mean.as<float>(),
                                  .inv_std = s.inv_std.as<float>(),
                                  .dx = s.dx.as<T>(),
                                  .parts = parts.data()};
        launch(&group_norm_backward_groups<T, V, kLast>, static_cast<unsigned>(shape.n * shape.groups),
               kGroupThreads, 0, stream_of(context), a);
      });
  if (!s.dweight && !s.dbias) return;
  const int count = row_length("group_norm", shape.n), channels = row_length("group_norm", shape.c);
  launch(&add_row_parts<T>, norm_blocks(s.dbias ? 2 * shape.c : shape.c, 32), {32, part_threads(count)}, 0,
         stream_of(context), parts.data(), count, channels, s.dweight.as<T>(), s.dbias.as<T>());
}

}  // namespace tapestry::kernels::cuda
