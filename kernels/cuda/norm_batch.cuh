#pragma once
// Batch normalization of a dense (n, c, l) tensor. A reduction computes sums over n and l per channel; an
// elementwise kernel (map) applies coefficients per channel.
//
//   reduce_columns, map_columns   l = 1. Channels are contiguous. A thread owns V adjacent channels and
//                                 iterates over rows, so that the coefficients of its channels stay in
//                                 registers.
//   reduce_planes, map_planes     l > 1. The l elements of one (image, channel) plane are contiguous.
//
// Reductions have two stages. Each block reduces one chunk of (n, l) to a partial result in the workspace,
// then finish_channels() merges the partial results in a fixed order, so results are deterministic.
#include <algorithm>
#include <cmath>

#include "tapestry/core/error.h"
#include "tapestry/kernels/cuda/map.cuh"
#include "tapestry/kernels/cuda/norm_batch_map.cuh"
#include "tapestry/kernels/ops/norm.h"
#include "tapestry/kernels/scratch.h"

namespace tapestry::kernels::cuda {

// ---- reductions. The State of a channel is two floats. Op::merge() also gets the number of elements in each
// State.

/// True unless the array of input k is null.
template <class F>
__device__ __forceinline__ bool has_input(const F& f, int k) {
  if constexpr (requires { F::kLastMayBeNull; }) return k + 1 < F::kInputs || f.in[k];
  else return true;
}

/// The number of inputs that column kernels keep in registers for a whole batch of rows: all but one that may
/// be null. In a reduction, that one is the result of relu, and only sets elements of the first input to 0.
template <class Op>
constexpr int kKeptInputs = Op::kInputs;
template <class Op>
requires(Op::kLastMayBeNull) constexpr int kKeptInputs<Op> = Op::kInputs - 1;

/// Mean and sum of squared deviations. Groups of elements are merged by the parallel algorithm of Chan, Golub
/// and LeVeque (1979), which does not cancel as E[x^2] - E[x]^2 does.
template <class T>
struct MomentsOf {
  using Type = T;
  static constexpr int kInputs = 1;
  const T* in[1];
  struct Channel {};
  struct State {
    float mean, squares;
  };
  __device__ Channel channel(std::int64_t) const { return {}; }
  /// Adds the first `count` of the N values. The values behind them must be 0.
  template <int N>
  __device__ static void add(State& s, float seen, const Channel&, const float (&x)[1][N], int count) {
    const float n = static_cast<float>(count), part = 1.0f / n;
    float sum = 0, squares = 0;
#pragma unroll
    for (int i = 0; i < N; ++i) sum += x[0][i];
    const float mean = sum * part;
#pragma unroll
    for (int i = 0; i < N; ++i) {
      const float d = i < count ? x[0][i] - mean : 0.0f;
      squares += d * d;
    }
    s = merge(s, seen, {mean, squares}, n);
  }
  __device__ static State merge(State a, float in_a, State b, float in_b) {
    if (in_b == 0) return a;
    const float delta = b.mean - a.mean, fraction = in_b / (in_a + in_b);
    // The factors are multiplied in this order, because delta * delta may overflow: if `a` is empty, delta is
    // the mean of `b`.
    return {a.mean + delta * fraction, a.squares + b.squares + delta * (in_a * fraction) * delta};
  }
};

/// The reduction Op for the gradients: the sums of dy and of dy (x - mean).
template <class T>
struct GradientsOf {
  using Type = T;
  static constexpr int kInputs = 3;
  static constexpr bool kLastMayBeNull = true;
  const T* in[3];  // dy, x, and the result of relu, which may be null
  const float* mean;
  struct Channel {
    float mean;
  };
  struct State {
    float plain, centred;
  };
  __device__ Channel channel(std::int64_t c) const { return {mean[c]}; }
  template <int N>
  __device__ static void add(State& s, float, const Channel& c, const float (&x)[2][N], int) {
    State sum{};
#pragma unroll
    for (int i = 0; i < N; ++i) {
      sum.plain += x[0][i];
      sum.centred += x[0][i] * (x[1][i] - c.mean);
    }
    s = merge(s, 0, sum, 0);
  }
  __device__ static State merge(State a, float, State b, float) {
    return {a.plain + b.plain, a.centred + b.centred};
  }
};

/// A State together with the number of elements in it.
template <class Op>
struct Counted {
  struct State {
    float count;
    typename Op::State s;
  };
  __device__ static State merge(State a, State b) {
    return {a.count + b.count, Op::merge(a.s, a.count, b.s, b.count)};
  }
  __device__ static State of_lane(State s, int bits) {
    auto& [a, b] = s.s;
    return {__shfl_xor_sync(kAllLanes, s.count, bits),
            {__shfl_xor_sync(kAllLanes, a, bits), __shfl_xor_sync(kAllLanes, b, bits)}};
  }
};
/// Block reduction by warp shuffles; every thread gets the result. A kernel may call it only once, because
/// the shared array is not protected by a second barrier.
template <class Op, int kThreads>
__device__ __forceinline__ typename Op::State merge_block(typename Op::State s) {
  using State = typename Op::State;
  __shared__ State warps[kThreads / 32];
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32;
#pragma unroll
  for (int lanes = 16; lanes > 0; lanes /= 2) s = Op::merge(s, Op::of_lane(s, lanes));
  if (lane == 0) warps[thread / 32] = s;
  __syncthreads();
  s = warps[lane % (kThreads / 32)];  // with fewer than 32 warps, lanes hold duplicates ...
#pragma unroll
  for (int lanes = kThreads / 64; lanes > 0;
       lanes /= 2)  // ... so shuffles over this many lanes see every warp
    s = Op::merge(s, Op::of_lane(s, lanes));
  return s;
}

/// Reduces each channel over chunks of rows. A block handles `width` packs of channels and all rows of a
/// chunk. The output `parts` is (chunks, 2, channels).
template <class Op, int V>
__global__ void __launch_bounds__(kChannelThreads, 2)
    reduce_columns(Op op, ChannelShape shape, float* parts) {
  constexpr int K = kKeptInputs<Op>;
  __shared__ float counts[kChannelThreads];
  __shared__ float states[2][V][kChannelThreads];  // adjacent threads use adjacent words: no bank conflicts
  const ColumnPlace place(shape);
  const int thread = static_cast<int>(threadIdx.x);
  typename Op::State s[V] = {};
  float seen = 0;
  if (place.inside) {
    typename Op::Channel channels[V];
#pragma unroll
    for (int v = 0; v < V; ++v) channels[v] = op.channel(place.column * V + v);
    for (std::int64_t row = place.row; row < place.end; row += place.step) {
      Pack<typename Op::Type, V> x[K][kBatch];
      int count = 0;
#pragma unroll
      for (int b = 0; b < kBatch; ++b) {
        const std::int64_t at = row + b;
#pragma unroll
        for (int k = 0; k < K; ++k) x[k][b] = {};
        if (at >= place.end) continue;
        ++count;
        const std::int64_t offset = (at * shape.c + place.column) * V;
#pragma unroll
        for (int k = 0; k < K; ++k) x[k][b] = load_pack<V>(op.in[k] + offset);
        if constexpr (K < Op::kInputs)
          if (op.in[K]) {
            const Pack<typename Op::Type, V> y = load_pack<V>(op.in[K] + offset);
#pragma unroll
            for (int v = 0; v < V; ++v)
              if (load(y.v[v]) <= 0) x[0][b].v[v] = typename Op::Type();
          }
      }
#pragma unroll
      for (int v = 0; v < V; ++v) {
        float own[K][kBatch];
#pragma unroll
        for (int k = 0; k < K; ++k)
#pragma unroll
          for (int b = 0; b < kBatch; ++b) own[k][b] = load(x[k][b].v[v]);
        Op::add(s[v], seen, channels[v], own, count);
      }
      seen += static_cast<float>(count);
    }
  }
  const auto publish = [&] {
    counts[thread] = seen;
#pragma unroll
    for (int v = 0; v < V; ++v) {
      const auto& [a, b] = s[v];
      states[0][v][thread] = a;
      states[1][v][thread] = b;
    }
  };
  publish();
  __syncthreads();
  for (int half = kChannelThreads / shape.width / 2; half > 0; half /= 2) {
    const int other = thread + half * shape.width;  // a thread that does not write in this round
    if (thread / shape.width < half) {
#pragma unroll
      for (int v = 0; v < V; ++v)
        s[v] = Op::merge(s[v], seen, {states[0][v][other], states[1][v][other]}, counts[other]);
      seen += counts[other];
      publish();
    }
    __syncthreads();
  }
  if (thread >= shape.width || !place.inside) return;
  float* const out = parts + (2 * place.chunk * shape.c + place.column) * V;
#pragma unroll
  for (int v = 0; v < V; ++v) {
    out[v] = states[0][v][thread];
    out[shape.c * V + v] = states[1][v][thread];
  }
}

template <class Op, int V>
__global__ void __launch_bounds__(kChannelThreads, 2) reduce_planes(Op op, ChannelShape shape, float* parts) {
  constexpr int K = kKeptInputs<Op>;
  const std::int64_t chunk = blockIdx.x / shape.c, channel = blockIdx.x - chunk * shape.c;
  const std::int64_t first = chunk * shape.chunk, plane = first / shape.l;
  // The index `i` counts the packs of this channel. It is 0 for the first pack of the plane in which the
  // chunk begins.
  const auto begin = static_cast<unsigned>(first - plane * shape.l);
  const unsigned end = begin + static_cast<unsigned>(std::min(shape.chunk, shape.n * shape.l - first));
  const typename Op::Channel own = op.channel(channel);
  typename Op::State s{};
  float seen = 0;
  for (unsigned i = begin + threadIdx.x; i < end; i += kBatch * kChannelThreads) {
    float x[K][kBatch * V];
    int count = 0;
#pragma unroll
    for (int b = 0; b < kBatch; ++b) {
      const unsigned at = i + b * kChannelThreads, planes = shape.plane.divide(at);
      const std::int64_t offset =
          ((plane + planes) * shape.c + channel) * shape.l + (at - planes * shape.plane.value);
#pragma unroll
      for (int k = 0; k < K; ++k) {
        Pack<typename Op::Type, V> pack{};
        if (at < end) pack = load_pack<V>(op.in[k] + offset * V);
#pragma unroll
        for (int v = 0; v < V; ++v) x[k][b * V + v] = load(pack.v[v]);
      }
      if constexpr (K < Op::kInputs)
        if (at < end && op.in[K]) {
          const Pack<typename Op::Type, V> y = load_pack<V>(op.in[K] + offset * V);
#pragma unroll
          for (int v = 0; v < V; ++v)
            if (load(y.v[v]) <= 0) x[0][b * V + v] = 0;
        }
      if (at < end) count += V;
    }
    Op::add(s, seen, own, x, count);
    seen += static_cast<float>(count);
  }
  const auto total = merge_block<Counted<Op>, kChannelThreads>({seen, s});
  if (threadIdx.x != 0) return;
  const auto& [a, b] = total.s;
  parts[2 * chunk * shape.c + channel] = a;
  parts[(2 * chunk + 1) * shape.c + channel] = b;
}

/// The number of threads that share one channel in finish_channels(), which is its blockDim.y. With many
/// chunks, more threads hide the latency of the loads.
inline constexpr unsigned kFinishThreads = 32;
inline unsigned finish_threads(int chunks) { return chunks > 64 ? kFinishThreads : 8; }

/// Merges the partial results of all chunks and calls finish() for each channel. Block (32, a power of 2).
/// All chunks but the last have `chunk` elements per channel, and all chunks together have `total`.
template <class Op, class Finish>
__global__ void __launch_bounds__(32 * kFinishThreads)
    finish_channels(const float* parts, int chunks, std::int64_t channels, std::int64_t chunk,
                    std::int64_t total, Finish finish) {
  __shared__ float counts[kFinishThreads][32];
  __shared__ float states[2][kFinishThreads][32];
  const std::int64_t channel = static_cast<std::int64_t>(blockIdx.x) * 32 + threadIdx.x;
  typename Op::State s{};
  float seen = 0;
  if (channel < channels)
    for (int i = static_cast<int>(threadIdx.y); i < chunks; i += static_cast<int>(blockDim.y)) {
      const auto count = static_cast<float>(std::min(chunk, total - i * chunk));
      const float* const part = parts + 2 * i * channels + channel;
      s = Op::merge(s, seen, {part[0], part[channels]}, count);
      seen += count;
    }
  const auto publish = [&] {
    const auto& [a, b] = s;
    counts[threadIdx.y][threadIdx.x] = seen;
    states[0][threadIdx.y][threadIdx.x] = a;
    states[1][threadIdx.y][threadIdx.x] = b;
  };
  publish();
  __syncthreads();
  for (unsigned half = blockDim.y / 2; half > 0; half /= 2) {
    if (threadIdx.y < half) {
      const unsigned other = threadIdx.y + half;
      s = Op::merge(s, seen, {states[0][other][threadIdx.x], states[1][other][threadIdx.x]},
                    counts[other][threadIdx.x]);
      seen += counts[other][threadIdx.x];
      publish();
    }
    __syncthreads();
  }
  if (threadIdx.y != 0 || channel >= channels) return;
  finish(channel, s);
}

template <class T>
struct FinishStats {
  float count, unbiased;  // unbiased: factor from the biased to the unbiased variance, n / (n - 1)
  float *mean, *var, *inv_std;
  float eps, momentum;
  T *running_mean, *running_var;
  template <class State>
  __device__ void operator()(std::int64_t c, const State& s) const {
    const float variance = s.squares / count;
    if (mean) mean[c] = s.mean;
    if (var) var[c] = variance;
    if (inv_std) inv_std[c] = 1.0f / sqrtf(variance + eps);
    const auto follow = [&](T& running, float value) {
      running = store<T>((1.0f - momentum) * load(running) + momentum * value);
    };
    if (running_mean) follow(running_mean[c], s.mean);
    if (running_var) follow(running_var[c], variance * unbiased);
  }
};

/// Turns the sums into dweight and dbias, and into the coefficients of MapGradient if `slope` is not null.
template <class T>
struct FinishGradients {
  float count;
  const float* inv_std;
  const T* weight;
  T *dweight, *dbias;
  float *slope, *centred, *offset;
  bool training;
  template <class State>
  __device__ void operator()(std::int64_t c, const State& s) const {
    const float inv = inv_std[c];
    if (dweight) dweight[c] = store<T>(s.centred * inv);
    if (dbias) dbias[c] = store<T>(s.plain);
    if (!slope) return;
    const float factor = weight ? inv * load(weight[c]) : inv;
    slope[c] = factor;
    // This order of products does not underflow.
    centred[c] = training ? factor * (inv * (inv * (s.centred / count))) : 0.0f;
    offset[c] = training ? factor * (s.plain / count) : 0.0f;
  }
};

// ---- elementwise maps

template <class F, int V>
__global__ void __launch_bounds__(kChannelThreads, 2) map_columns(F f, ChannelShape shape) {
  constexpr int K = F::kInputs;
  // An input that may be null is loaded when it is used, because registers are short.
  constexpr int kFirst = kKeptInputs<F>;
  const ColumnPlace place(shape);
  if (!place.inside) return;
  typename F::Channel channels[V];
#pragma unroll
  for (int v = 0; v < V; ++v) channels[v] = f.channel(place.column * V + v);
  for (std::int64_t row = place.row; row < place.end; row += place.step) {
    Pack<typename F::Type, V> x[kBatch][kFirst], last{};
#pragma unroll
    for (int b = 0; b < kBatch; ++b) {
      const std::int64_t at = row + b;
#pragma unroll
      for (int k = 0; k < kFirst; ++k) {
        x[b][k] = {};
        if (at < place.end) x[b][k] = load_pack<V>(f.in[k] + (at * shape.c + place.column) * V);
      }
    }
#pragma unroll
    for (int b = 0; b < kBatch; ++b) {
      const std::int64_t at = row + b;
      if (at >= place.end) break;
      if constexpr (kFirst < K)
        if (f.in[kFirst]) last = load_pack<V>(f.in[kFirst] + (at * shape.c + place.column) * V);
      float y[V], also[V];
#pragma unroll
      for (int v = 0; v < V; ++v) {
        float own[K];
#pragma unroll
        for (int k = 0; k < kFirst; ++k) own[k] = load(x[b][k].v[v]);
        if constexpr (kFirst < K) own[kFirst] = load(last.v[v]);
        y[v] = f.result(channels[v], own);
        if constexpr (requires { f.also; }) also[v] = f.counted(own);
      }
      store_pack(f.out + (at * shape.c + place.column) * V, y);
      if constexpr (requires { f.also; })
        if (f.also) store_pack(f.also + (at * shape.c + place.column) * V, also);
    }
  }
}

template <class F, int V>
__global__ void __launch_bounds__(kChannelThreads, 2) map_planes(F f, ChannelShape shape) {
  constexpr int K = F::kInputs;
  const std::int64_t first = static_cast<std::int64_t>(blockIdx.x) * kBatch * kChannelThreads;
  const std::int64_t plane = first / shape.l, end = shape.n * shape.c * shape.l;
  const auto begin = static_cast<unsigned>(first - plane * shape.l),  // pack index, as in reduce_planes
      channel = static_cast<unsigned>(plane % shape.c);
  Pack<typename F::Type, V> x[kBatch][K];
#pragma unroll
  for (int b = 0; b < kBatch; ++b) {
    const std::int64_t at = first + b * kChannelThreads + threadIdx.x;
#pragma unroll
    for (int k = 0; k < K; ++k) {
      x[b][k] = {};
      if (at < end && has_input(f, k)) x[b][k] = load_pack<V>(f.in[k] + at * V);
    }
  }
#pragma unroll
  for (int b = 0; b < kBatch; ++b) {
    const std::int64_t at = first + b * kChannelThreads + threadIdx.x;
    if (at >= end) break;
    const unsigned c = channel + shape.plane.divide(begin + b * kChannelThreads + threadIdx.x);
    const typename F::Channel own = f.channel(c - shape.channels.divide(c) * shape.channels.value);
    float y[V], also[V];
#pragma unroll
    for (int v = 0; v < V; ++v) {
      float values[K];
#pragma unroll
      for (int k = 0; k < K; ++k) values[k] = load(x[b][k].v[v]);
      y[v] = f.result(own, values);
      if constexpr (requires { f.also; }) also[v] = f.counted(values);
    }
    store_pack(f.out + at * V, y);
    if constexpr (requires { f.also; })
      if (f.also) store_pack(f.also + at * V, also);
  }
}

// ---- launches

/// Returns the shape in packs of V elements. Chunks are chosen to give about `blocks` blocks, but a chunk
/// never has less than one full batch of loads per thread.
template <int V>
ChannelShape channel_shape(const BatchNormShape& s, std::int64_t blocks) {
  constexpr std::int64_t kMost = std::int64_t{1} << 30;
  check(s.c <= kMost && s.l <= kMost, "[batch_norm] ", s.c, " channels of ", s.l,
        " elements are too many for a CUDA kernel; use at most ", kMost, " of each");
  const auto parts = [](std::int64_t n, std::int64_t size) { return (n + size - 1) / size; };
  ChannelShape shape{.n = s.n, .c = s.c, .l = s.l, .width = 1, .tiles = 1};
  if (s.l == 1) {
    shape.c /= V;
    while (shape.width < 32 && shape.width < shape.c) shape.width *= 2;
    shape.tiles = static_cast<int>(parts(shape.c, shape.width));
    shape.chunk = std::max<std::int64_t>(kBatch * (kChannelThreads / shape.width),
                                         parts(shape.n, parts(blocks, shape.tiles)));
  } else {
    shape.l /= V;
    shape.chunk =
        std::max<std::int64_t>(kBatch * kChannelThreads, parts(shape.n * shape.l, parts(blocks, shape.c)));
    shape.plane = Divisor(static_cast<unsigned>(shape.l));
    shape.channels = Divisor(static_cast<unsigned>(shape.c));
  }
  return shape;
}

/// Whether 16-byte vector accesses are possible.
template <class T>
bool channels_take_packs(const BatchNormShape& s, std::initializer_list<const void*> arrays) {
  constexpr int V = 16 / sizeof(T);
  return (s.l == 1 ? s.c : s.l) % V == 0 &&
         std::all_of(arrays.begin(), arrays.end(), [](const void* p) { return aligned<T, V>(p); });
}

inline constexpr std::int64_t kReduceBlocks = 132 * 8, kMapBlocks = 132 * 16;

template <int V, class Op, class Finish>
void launch_channel_sums(const BatchNormShape& s, const Op& op, const Finish& finish,
                         const LaunchContext& context) {
  const cudaStream_t stream = stream_of(context);
  const ChannelShape shape = channel_shape<V>(s, kReduceBlocks);
  const bool columns = s.l == 1;
  const std::int64_t total = columns ? shape.n : shape.n * shape.l;
  const auto chunks = static_cast<int>((total + shape.chunk - 1) / shape.chunk);
  const Scratch<float> parts(context.device, 2 * chunks * s.c);
  if (chunks > 0)
    launch(columns ? &reduce_columns<Op, V> : &reduce_planes<Op, V>,
           static_cast<unsigned>(chunks * (columns ? shape.tiles : shape.c)), kChannelThreads, 0, stream, op,
           shape, parts.data());
  const int each = columns ? 1 : V;
  launch(&finish_channels<Op, Finish>, static_cast<unsigned>((s.c + 31) / 32), {32, finish_threads(chunks)},
         0, stream, parts.data(), chunks, s.c, shape.chunk * each, total * each, finish);
}

template <int V, class F>
void launch_channel_map(const BatchNormShape& s, const F& f, cudaStream_t stream) {
  const ChannelShape shape = channel_shape<V>(s, kMapBlocks);
  if (s.l == 1)
    return launch(&map_columns<F, V>,
                  static_cast<unsigned>((shape.n + shape.chunk - 1) / shape.chunk * shape.tiles),
                  kChannelThreads, 0, stream, f, shape);
  constexpr std::int64_t kBlock = kBatch * kChannelThreads;
  launch(&map_planes<F, V>, static_cast<unsigned>((shape.n * shape.c * shape.l + kBlock - 1) / kBlock),
         kChannelThreads, 0, stream, f, shape);
}

template <class T>
void launch_batch_norm_stats(const LaunchContext& context, const BatchNormStatsArgs& a) {
  const BatchNormShape& s = a.shape;
  if (s.c == 0) return;
  const T* const x = a.x.as<T>();
  const MomentsOf<T> op{{x}};
  const auto count = static_cast<double>(s.n * s.l);
  const FinishStats<T> finish{.count = static_cast<float>(count),
                              .unbiased = static_cast<float>(count / (count - 1)),
                              .mean = a.mean.as<float>(),
                              .var = a.var.as<float>(),
                              .inv_std = a.inv_std.as<float>(),
                              .eps = static_cast<float>(a.eps),
                              .momentum = static_cast<float>(a.momentum),
                              .running_mean = a.running_mean.as<T>(),
                              .running_var = a.running_var.as<T>()};
  if (channels_take_packs<T>(s, {x})) launch_channel_sums<16 / sizeof(T)>(s, op, finish, context);
  else launch_channel_sums<1>(s, op, finish, context);
}

template <class T>
void launch_batch_norm(const LaunchContext& context, const BatchNormArgs& a) {
  const BatchNormShape& s = a.shape;
  if (s.n * s.c * s.l == 0) return;
  const T *const x = a.x.as<T>(), *const residual = a.residual.as<T>();
  T* const y = a.y.as<T>();
  const MapNormal<T> f{{x, residual},  y,     a.mean.as<float>(), a.inv_std.as<float>(), a.weight.as<T>(),
                       a.bias.as<T>(), a.relu};
  const cudaStream_t stream = stream_of(context);
  if (channels_take_packs<T>(s, {x, y, residual})) launch_channel_map<16 / sizeof(T)>(s, f, stream);
  else launch_channel_map<1>(s, f, stream);
}

template <class T>
void launch_batch_norm_backward(const LaunchContext& context, const BatchNormBackwardArgs& a) {
  const BatchNormShape& s = a.shape;
  if (s.c == 0) return;
  const T *const dy = a.dy.as<T>(), *const x = a.x.as<T>(), *const relu_y = a.relu_y.as<T>();
  T* const dresidual = a.dresidual.as<T>();
  const Scratch<T> unused(context.device, dresidual && !a.dx ? s.n * s.c * s.l : 0);
  T* const dx = unused.data() ? unused.data() : a.dx.as<T>();
  const float *const mean = a.mean.as<float>(), *const inv_std = a.inv_std.as<float>();
  // Without a relu, dx in evaluation needs no coefficients.
  const bool mapped = dx && (a.training || relu_y || dresidual);
  const Scratch<float> numbers(context.device, mapped ? 3 * s.c : 0);
  float* const slope = numbers.data();
  if (mapped || a.dweight || a.dbias) {
    const GradientsOf<T> op{{dy, x, relu_y}, mean};
    const FinishGradients<T> finish{.count = static_cast<float>(s.n * s.l),
                                    .inv_std = inv_std,
                                    .weight = a.weight.as<T>(),
                                    .dweight = a.dweight.as<T>(),
                                    .dbias = a.dbias.as<T>(),
                                    .slope = slope,
                                    .centred = mapped ? slope + s.c : nullptr,
                                    .offset = mapped ? slope + 2 * s.c : nullptr,
                                    .training = a.training};
    if (channels_take_packs<T>(s, {dy, x, relu_y}))
      launch_channel_sums<16 / sizeof(T)>(s, op, finish, context);
    else launch_channel_sums<1>(s, op, finish, context);
  }
  if (!dx) return;
  if (!mapped)  // with constant statistics dx = inv_std weight dy
    return launch_batch_norm<T>(context,
                                {.shape = s, .x = a.dy, .inv_std = a.inv_std, .weight = a.weight, .y = a.dx});
  if (s.n * s.l == 0) return;
  const MapGradient<T> f{{dy, x, relu_y}, dx, mean, slope, slope + s.c, slope + 2 * s.c, dresidual};
  const cudaStream_t stream = stream_of(context);
  if (channels_take_packs<T>(s, {dy, x, dx, relu_y, dresidual}))
    launch_channel_map<16 / sizeof(T)>(s, f, stream);
  else launch_channel_map<1>(s, f, stream);
}

}  // namespace tapestry::kernels::cuda
