#pragma once
// GPU kernel of rotary position embeddings. A thread rotates V adjacent pairs of one row, which it loads and
// stores as packs of 16 bytes if layout and alignment allow, or copies features that are not rotated.
#include <algorithm>
#include <cstdint>

#include "tapestry/kernels/cuda/dims.cuh"
#include "tapestry/kernels/cuda/launch_context.cuh"
#include "tapestry/kernels/ops/rope.h"

namespace tapestry::kernels::cuda {

inline constexpr int kRopeThreads = 256;

struct RopeRows {
  std::int64_t threads;  // of the whole launch
  WideDivisor items;     // threads of one row: packs of pairs, then packs of other features
  WideDivisor length, heads;
  std::int64_t x[3], y[3];  // strides of batch, heads and length
  std::int64_t table;       // stride of a batch of cos and sin
  int pairs;
  bool interleaved;
  float sign;  // of the sines
};

template <class T, int V>
__global__ void __launch_bounds__(kRopeThreads)
    rotate_pairs(RopeRows r, const T* x, const float* cos, const float* sin, T* y) {
  const std::int64_t thread = static_cast<std::int64_t>(blockIdx.x) * kRopeThreads + threadIdx.x;
  if (thread >= r.threads) return;
  const auto row = static_cast<std::int64_t>(r.items.divide(static_cast<std::uint64_t>(thread)));
  const int item = static_cast<int>(thread - row * static_cast<std::int64_t>(r.items.value));
  const auto head = static_cast<std::int64_t>(r.length.divide(static_cast<std::uint64_t>(row)));
  const std::int64_t l = row - head * static_cast<std::int64_t>(r.length.value);
  const auto n = static_cast<std::int64_t>(r.heads.divide(static_cast<std::uint64_t>(head)));
  const std::int64_t h = head - n * static_cast<std::int64_t>(r.heads.value);
  x += n * r.x[0] + h * r.x[1] + l * r.x[2];
  y += n * r.y[0] + h * r.y[1] + l * r.y[2];

  using Packed = Pack<T, V>;
  const int i = item * V;  // the first pair
  if (i >= r.pairs) {
    const int at = i + r.pairs;
    *reinterpret_cast<Packed*>(y + at) = *reinterpret_cast<const Packed*>(x + at);
    return;
  }
  const std::int64_t angles = n * r.table + l * r.pairs + i;
  // The features of the pairs: two packs, which are adjacent in the interleaved layout.
  const int first = r.interleaved ? 2 * i : i, second = r.interleaved ? 2 * i + V : i + r.pairs;
  alignas(sizeof(Packed)) T in[2 * V];
  alignas(sizeof(Packed)) T out[2 * V];
  *reinterpret_cast<Packed*>(in) = *reinterpret_cast<const Packed*>(x + first);
  *reinterpret_cast<Packed*>(in + V) = *reinterpret_cast<const Packed*>(x + second);
#pragma unroll
  for (int j = 0; j < V; ++j) {
    const float c = cos[angles + j], s = r.sign * sin[angles + j];
    // Both indices are known to the compiler, so that the packs stay in registers.
    const float a = load(r.interleaved ? in[2 * j] : in[j]),
                b = load(r.interleaved ? in[2 * j + 1] : in[j + V]);
    const T p = store<T>(a * c - b * s), q = store<T>(a * s + b * c);
    if (r.interleaved) out[2 * j] = p, out[2 * j + 1] = q;
    else out[j] = p, out[j + V] = q;
  }
  *reinterpret_cast<Packed*>(y + first) = *reinterpret_cast<Packed*>(out);
  *reinterpret_cast<Packed*>(y + second) = *reinterpret_cast<Packed*>(out + V);
}

template <class T, int V>
void launch_rope_packs(const LaunchContext& context, const RopeArgs& a) {
  const std::int64_t items = (a.width - a.pairs) / V, rows = a.batch * a.heads * a.length;
  RopeRows r{.threads = rows * items,
             .items = WideDivisor(items),
             .length = WideDivisor(a.length),
             .heads = WideDivisor(a.heads),
             .x = {},
             .y = {},
             .table = a.table_stride,
             .pairs = static_cast<int>(a.pairs),
             .interleaved = a.interleaved,
             .sign = a.inverse ? -1.0f : 1.0f};
  std::copy_n(a.x_strides.data(), 3, r.x);
  std::copy_n(a.y_strides.data(), 3, r.y);
  const auto blocks = static_cast<unsigned>((r.threads + kRopeThreads - 1) / kRopeThreads);
  launch(&rotate_pairs<T, V>, blocks, kRopeThreads, 0, stream_of(context), r, a.x.as<T>(), a.cos.as<float>(),
         a.sin.as<float>(), a.y.as<T>());
}

template <class T>
void launch_rope(const LaunchContext& context, const RopeArgs& a) {
  if (a.batch * a.heads * a.length * a.width == 0) return;
  constexpr int V = 16 / sizeof(T);
  bool packs =
      a.pairs % V == 0 && a.width % V == 0 && aligned<T, V>(a.x.as<T>()) && aligned<T, V>(a.y.as<T>());
  for (const std::int64_t stride : a.x_strides) packs = packs && stride % V == 0;
  for (const std::int64_t stride : a.y_strides) packs = packs && stride % V == 0;
  if (packs) launch_rope_packs<T, V>(context, a);
  else launch_rope_packs<T, 1>(context, a);
}

}  // namespace tapestry::kernels::cuda
