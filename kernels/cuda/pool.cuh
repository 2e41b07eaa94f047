#pragma once
// Pooling. A row-major (N, C, H, W) tensor is treated as channels-last with N C images of one channel, so one
// kernel serves both layouts. A thread computes V adjacent channels of one output pixel. In backward it
// computes one input pixel: it gathers from all windows that contain the pixel, in a fixed order and without
// atomics.
#include <algorithm>
#include <initializer_list>
#include <limits>

#include "tapestry/core/error.h"
#include "tapestry/kernels/cuda/map.cuh"
#include "tapestry/kernels/ops/pool.h"

namespace tapestry::kernels::cuda {

inline constexpr int kPoolThreads = 128;

/// Division of non-negative numbers by an invariant divisor: multiply-high and shift below 2^31, else a
/// hardware division.
struct Division {
  std::int64_t value = 1;
  Divisor fast;

  Division() = default;
  explicit Division(std::int64_t d) : value(d) {
    if (d < kLimit) fast = Divisor(static_cast<unsigned>(d));
  }
  __device__ std::int64_t divide(std::int64_t n) const {
    return n < kLimit && value < kLimit ? fast.divide(static_cast<unsigned>(n)) : n / value;
  }
  /// Replaces n by the quotient and returns the remainder.
  __device__ int split(std::int64_t& n) const {
    const std::int64_t quotient = divide(n), rest = n - quotient * value;
    n = quotient;
    return static_cast<int>(rest);
  }

 private:
  static constexpr std::int64_t kLimit = std::int64_t{1} << 31;
};

/// One axis of the pooling: rows or columns.
struct PoolSide {
  Division in, out, stride, dilation;
  int kernel, padding, span;  // span: extent of a dilated window
  bool adaptive, count_pad;

  struct Window {
    int begin, end, divisor;
  };
  /// The elements [begin, end) of window i, and the divisor of its average.
  __device__ Window window(int i) const {
    if (adaptive) {
      const auto begin = static_cast<int>(out.divide(i * in.value)),
                 end = static_cast<int>(out.divide((i + 1) * in.value + out.value - 1));
      return {begin, end, end - begin};
    }
    const int size = static_cast<int>(in.value), start = i * static_cast<int>(stride.value) - padding;
    const int stop = std::min(start + kernel, size + padding), begin = std::clamp(start, 0, size),
              end = std::clamp(stop, begin, size);
    return {begin, end, count_pad ? stop - start : end - begin};
  }
  /// The first and the last window that may contain element i.
  __device__ int first_with(int i) const {
    if (adaptive) return static_cast<int>(in.divide(i * out.value));
    const int last_start = i + padding - span + 1;
    return last_start <= 0 ? 0 : static_cast<int>(stride.divide(last_start + stride.value - 1));
  }
  __device__ int last_with(int i) const {
    if (adaptive) return static_cast<int>(in.divide((i + 1) * out.value + in.value - 1)) - 1;
    return static_cast<int>(std::min(stride.divide(i + padding), out.value - 1));
  }
  /// The index of element i within window w, or -1 if dilation skips it.
  __device__ int place(int w, int i) const {
    const int from_start = i + padding - w * static_cast<int>(stride.value);
    const int at = static_cast<int>(dilation.divide(from_start));
    return at * static_cast<int>(dilation.value) == from_start ? at : -1;
  }
};

/// Sizes in packs of V channels.
struct PoolShape {
  std::int64_t inputs, outputs;
  Division channels;
  PoolSide h, w;

  __device__ std::int64_t input_at(std::int64_t image, int row, int column, int channel) const {
    return ((image * h.in.value + row) * w.in.value + column) * channels.value + channel;
  }
  __device__ std::int64_t output_at(std::int64_t image, int row, int column, int channel) const {
    return ((image * h.out.value + row) * w.out.value + column) * channels.value + channel;
  }
};

/// Coordinates of a pixel of the input or output.
struct PoolPixel {
  std::int64_t image;
  int row, column, channel;
  __device__ PoolPixel(std::int64_t index, const PoolShape& s, const Division& rows, const Division& columns)
      : image(index) {
    channel = s.channels.split(image);
    column = columns.split(image);
    row = rows.split(image);
  }
};

template <class T, class I, int V>
__global__ void __launch_bounds__(kPoolThreads) max_pool(PoolShape s, const T* x, T* y, I* places) {
  const std::int64_t index = static_cast<std::int64_t>(blockIdx.x) * kPoolThreads + threadIdx.x;
  if (index >= s.outputs) return;
  const PoolPixel out(index, s, s.h.out, s.w.out);
  const int stride_h = static_cast<int>(s.h.stride.value), stride_w = static_cast<int>(s.w.stride.value);
  Pack<T, V> best;
  int place[V];
#pragma unroll
  for (int v = 0; v < V; ++v) {
    best.v[v] = store<T>(-std::numeric_limits<float>::infinity());
    place[v] = -1;
  }
  for (int r = 0; r < s.h.kernel; ++r) {
    const int row = out.row * stride_h - s.h.padding + r * static_cast<int>(s.h.dilation.value);
    if (row < 0 || row >= s.h.in.value) continue;
    for (int t = 0; t < s.w.kernel; ++t) {
      const int column = out.column * stride_w - s.w.padding + t * static_cast<int>(s.w.dilation.value);
      if (column < 0 || column >= s.w.in.value) continue;
      const auto pack =
          *reinterpret_cast<const Pack<T, V>*>(x + s.input_at(out.image, row, column, out.channel) * V);
#pragma unroll
      for (int v = 0; v < V; ++v) {
        const float value = load(pack.v[v]);
        if (value > load(best.v[v]) || value != value || place[v] < 0) {
          best.v[v] = pack.v[v];
          place[v] = r * s.w.kernel + t;
        }
      }
    }
  }
  reinterpret_cast<Pack<T, V>*>(y)[index] = best;
  if (!places) return;
  Pack<I, V> found;
#pragma unroll
  for (int v = 0; v < V; ++v) found.v[v] = static_cast<I>(place[v]);
  reinterpret_cast<Pack<I, V>*>(places)[index] = found;
}

template <class T, class I, int V>
__global__ void __launch_bounds__(kPoolThreads)
    max_pool_backward(PoolShape s, const T* dy, const I* places, T* dx) {
  const std::int64_t index = static_cast<std::int64_t>(blockIdx.x) * kPoolThreads + threadIdx.x;
  if (index >= s.inputs) return;
  const PoolPixel in(index, s, s.h.in, s.w.in);
  float sum[V] = {};
  const int last_p = s.h.last_with(in.row), first_q = s.w.first_with(in.column),
            last_q = s.w.last_with(in.column);
  for (int p = s.h.first_with(in.row); p <= last_p; ++p) {
    const int r = s.h.place(p, in.row);
    if (r < 0) continue;
    for (int q = first_q; q <= last_q; ++q) {
      const int t = s.w.place(q, in.column);
      if (t < 0) continue;
      const I own = static_cast<I>(r * s.w.kernel + t);
      const std::int64_t at = s.output_at(in.image, p, q, in.channel);
      const auto found = reinterpret_cast<const Pack<I, V>*>(places)[at];
      const auto pack = reinterpret_cast<const Pack<T, V>*>(dy)[at];
#pragma unroll
      for (int v = 0; v < V; ++v)
        if (found.v[v] == own) sum[v] += load(pack.v[v]);
    }
  }
  Pack<T, V> result;
#pragma unroll
  for (int v = 0; v < V; ++v) result.v[v] = store<T>(sum[v]);
  reinterpret_cast<Pack<T, V>*>(dx)[index] = result;
}

__device__ __forceinline__ float window_weight(const PoolSide::Window& h, const PoolSide::Window& w) {
  const float size = static_cast<float>(h.divisor) * static_cast<float>(w.divisor);
  return size > 0 ? 1.0f / size : 0.0f;
}

/// kLanes = 1: one thread per output. kLanes = 32: one warp per output, for large windows of row-major
/// images.
template <class T, int V, int kLanes>
__global__ void __launch_bounds__(kPoolThreads) average_pool(PoolShape s, const T* x, T* y) {
  const std::int64_t thread = static_cast<std::int64_t>(blockIdx.x) * kPoolThreads + threadIdx.x,
                     index = thread / kLanes;
  if (index >= s.outputs) return;  // uniform over the warp
  const PoolPixel out(index, s, s.h.out, s.w.out);
  const PoolSide::Window h = s.h.window(out.row), w = s.w.window(out.column);
  float sum[V] = {};
  const auto add = [&](int row, int column) {
    const auto pack =
        *reinterpret_cast<const Pack<T, V>*>(x + s.input_at(out.image, row, column, out.channel) * V);
#pragma unroll
    for (int v = 0; v < V; ++v) sum[v] += load(pack.v[v]);
  };
  if constexpr (kLanes == 1) {
    for (int row = h.begin; row < h.end; ++row)
      for (int column = w.begin; column < w.end; ++column) add(row, column);
  } else {
    // The lanes stride over the window by 32 elements, row after row.
    const int width = w.end - w.begin;
    int row = h.begin, column = static_cast<int>(threadIdx.x % kLanes);
    while (width > 0) {
      if (column >= width) {
        row += column / width;
        column %= width;
      }
      if (row >= h.end) break;
      add(row, w.begin + column);
      column += kLanes;
    }
#pragma unroll
    for (int lanes = 16; lanes > 0; lanes /= 2) sum[0] += __shfl_xor_sync(kAllLanes, sum[0], lanes);
    if (threadIdx.x % kLanes != 0) return;
  }
  const float weight = window_weight(h, w);
  Pack<T, V> result;
#pragma unroll
  for (int v = 0; v < V; ++v) result.v[v] = store<T>(sum[v] * weight);
  reinterpret_cast<Pack<T, V>*>(y)[index] = result;
}

template <class T, int V>
__global__ void __launch_bounds__(kPoolThreads) average_pool_backward(PoolShape s, const T* dy, T* dx) {
  const std::int64_t index = static_cast<std::int64_t>(blockIdx.x) * kPoolThreads + threadIdx.x;
  if (index >= s.inputs) return;
  const PoolPixel in(index, s, s.h.in, s.w.in);
  float sum[V] = {};
  const int last_p = s.h.last_with(in.row), first_q = s.w.first_with(in.column),
            last_q = s.w.last_with(in.column);
  for (int p = s.h.first_with(in.row); p <= last_p; ++p) {
    const PoolSide::Window h = s.h.window(p);
    for (int q = first_q; q <= last_q; ++q) {
      const float weight = window_weight(h, s.w.window(q));
      const auto pack = reinterpret_cast<const Pack<T, V>*>(dy)[s.output_at(in.image, p, q, in.channel)];
#pragma unroll
      for (int v = 0; v < V; ++v) sum[v] += load(pack.v[v]) * weight;
    }
  }
  Pack<T, V> result;
#pragma unroll
  for (int v = 0; v < V; ++v) result.v[v] = store<T>(sum[v]);
  reinterpret_cast<Pack<T, V>*>(dx)[index] = result;
}

// ---- launches

template <int V>
PoolShape pool_shape(const Pool2dShape& s, bool adaptive) {
  constexpr std::int64_t kMost = std::int64_t{1} << 29;
  const auto side = [&](std::int64_t in, std::int64_t out, std::int64_t kernel, std::int64_t stride,
                        std::int64_t padding, std::int64_t dilation) {
    // A stride beyond the padded input gives a single window, whatever its value. It is reduced so that
    // products with it cannot overflow.
    if (!adaptive) stride = std::min(stride, in + 2 * padding + 1);
    const std::int64_t span = (kernel - 1) * dilation + 1;
    check(in <= kMost && out <= kMost && (adaptive || (span <= kMost && padding <= kMost)), "[pool] pooling ",
          in, " to ", out, " pixels by windows of ", span, " with padding ", padding,
          " is too large for a CUDA kernel; use at most ", kMost, " of each");
    return PoolSide{.in = Division(in),
                    .out = Division(out),
                    .stride = Division(stride),
                    .dilation = Division(dilation),
                    .kernel = static_cast<int>(kernel),
                    .padding = static_cast<int>(padding),
                    .span = static_cast<int>(span),
                    .adaptive = adaptive,
                    .count_pad = s.count_include_pad};
  };
  const std::int64_t images = s.channels_last ? s.n : s.n * s.c, channels = s.channels_last ? s.c / V : 1;
  return {.inputs = images * channels * s.h * s.w,
          .outputs = images * channels * s.p * s.q,
          .channels = Division(channels),
          .h = side(s.h, s.p, s.kernel_h, s.stride_h, s.padding_h, s.dilation_h),
          .w = side(s.w, s.q, s.kernel_w, s.stride_w, s.padding_w, s.dilation_w)};
}

/// Whether 16-byte accesses are possible.
template <class T>
bool pools_packs(const Pool2dShape& s, std::initializer_list<const void*> arrays) {
  constexpr int V = 16 / sizeof(T);
  return s.channels_last && s.c % V == 0 &&
         std::all_of(arrays.begin(), arrays.end(), [](const void* p) { return aligned<T, V>(p); });
}
inline unsigned pool_blocks(std::int64_t threads) {
  return static_cast<unsigned>((threads + kPoolThreads - 1) / kPoolThreads);
}
inline bool has_pixels(const Pool2dShape& s) { return s.n * s.c * s.h * s.w * s.p * s.q != 0; }

template <class T>
void launch_max_pool2d(const LaunchContext& context, const MaxPool2dArgs& a) {
  const Pool2dShape& s = a.shape;
  if (!has_pixels(s)) return;
  const T* const x = a.x.as<T>();
  T* const y = a.y.as<T>();
  const auto run = [&]<class I, int V>() {
    const PoolShape shape = pool_shape<V>(s, false);
    launch(&max_pool<T, I, V>, pool_blocks(shape.outputs), kPoolThreads, 0, stream_of(context), shape, x, y,
           a.places.as<I>());
  };
  constexpr int V = 16 / sizeof(T);
  if (a.places && s.kernel_h * s.kernel_w > kSmallWindow) run.template operator()<std::int32_t, 1>();
  else if (pools_packs<T>(s, {x, y}) && aligned<std::uint8_t, V>(a.places.address()))
    run.template operator()<std::uint8_t, V>();
  else run.template operator()<std::uint8_t, 1>();
}

template <class T>
void launch_max_pool2d_backward(const LaunchContext& context, const MaxPool2dBackwardArgs& a) {
  const Pool2dShape& s = a.shape;
  if (!has_pixels(s)) return;
  const T* const dy = a.dy.as<T>();
  T* const dx = a.dx.as<T>();
  const auto run = [&]<class I, int V>() {
    const PoolShape shape = pool_shape<V>(s, false);
    launch(&max_pool_backward<T, I, V>, pool_blocks(shape.inputs), kPoolThreads, 0, stream_of(context), shape,
           dy, a.places.as<I>(), dx);
  };
  constexpr int V = 16 / sizeof(T);
  if (s.kernel_h * s.kernel_w > kSmallWindow) run.template operator()<std::int32_t, 1>();
  else if (pools_packs<T>(s, {dy, dx}) && aligned<std::uint8_t, V>(a.places.address()))
    run.template operator()<std::uint8_t, V>();
  else run.template operator()<std::uint8_t, 1>();
}

template <class T, bool adaptive>
void launch_average_pool(const LaunchContext& context, const AvgPool2dArgs& a) {
  const Pool2dShape& s = a.shape;
  if (!has_pixels(s)) return;
  const T* const x = a.x.as<T>();
  T* const y = a.y.as<T>();
  const auto run = [&]<int V, int kLanes>() {
    const PoolShape shape = pool_shape<V>(s, adaptive);
    launch(&average_pool<T, V, kLanes>, pool_blocks(shape.outputs * kLanes), kPoolThreads, 0,
           stream_of(context), shape, x, y);
  };
  const std::int64_t window =
      adaptive ? (s.h / s.p) * (s.w / s.q) : std::min(s.h, s.kernel_h) * std::min(s.w, s.kernel_w);
  if (pools_packs<T>(s, {x, y})) run.template operator()<16 / sizeof(T), 1>();
  else if (!s.channels_last && window >= 32) run.template operator()<1, 32>();
  else run.template operator()<1, 1>();
}

template <class T, bool adaptive>
void launch_average_pool_backward(const LaunchContext& context, const AvgPool2dBackwardArgs& a) {
  const Pool2dShape& s = a.shape;
  if (!has_pixels(s)) return;
  const T* const dy = a.dy.as<T>();
  T* const dx = a.dx.as<T>();
  const auto run = [&]<int V>() {
    const PoolShape shape = pool_shape<V>(s, adaptive);
    launch(&average_pool_backward<T, V>, pool_blocks(shape.inputs), kPoolThreads, 0, stream_of(context),
           shape, dy, dx);
  };
  if (pools_packs<T>(s, {dy, dx})) run.template operator()<16 / sizeof(T)>();
  else run.template operator()<1>();
}

}  // namespace tapestry::kernels::cuda
