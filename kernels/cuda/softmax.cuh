#pragma once
// Softmax, log-softmax and their gradients. Each kernel first reduces a row to its State, then computes every
// element from the State. The kernel depends on the layout of the rows:
//
//   row_in_registers   contiguous, up to 16384 elements: read once, held in registers by a warp or a block
//   row_streamed       contiguous and longer: read once for the State and again for the result
//   row_parts          few long rows, which would leave most SMs idle: several blocks per row, in two
//                      launches, one for the States of the parts and one for the results
//   columns            elements of a row are `inner` elements apart: adjacent threads have adjacent rows, so
//                      accesses are coalesced
//
// The State is merged by the online softmax (Milakov and Gimelshein 2018), which needs one pass for maximum
// and sum.
#include <algorithm>
#include <cmath>
#include <limits>

#include "tapestry/kernels/cuda/launch_context.cuh"
#include "tapestry/kernels/ops/softmax.h"
#include "tapestry/kernels/scratch.h"

namespace tapestry::kernels::cuda {

inline constexpr float kInfinity = std::numeric_limits<float>::infinity();

/// All-reduce (sum or maximum) over the threads of a row: a warp or a block. sum() and max() each have one
/// shared array and no second barrier to protect it, so a kernel with one block per row may call each of them
/// only once.
template <int kThreads>
struct RowThreads {
  template <int K>
  __device__ __forceinline__ static void sum(float (&s)[K]) {
    __shared__ float warps[K][kThreads / 32];
    merge(s, warps, [](float a, float b) { return a + b; });
  }
  __device__ __forceinline__ static float max(float x) {
    __shared__ float warps[1][kThreads / 32];
    float s[1] = {x};
    merge(s, warps, [](float a, float b) { return fmaxf(a, b); });
    return s[0];
  }

 private:
  template <int K, class F>
  __device__ __forceinline__ static void merge(float (&s)[K], float (&warps)[K][kThreads / 32], F f) {
    const auto lanes = [&](int from) {
#pragma unroll
      for (int bits = from; bits > 0; bits /= 2)
#pragma unroll
        for (int k = 0; k < K; ++k) s[k] = f(s[k], __shfl_xor_sync(kAllLanes, s[k], bits));
    };
    lanes(16);
    if constexpr (kThreads > 32) {
      const int thread = static_cast<int>(threadIdx.x), lane = thread % 32;
      if (lane == 0)
#pragma unroll
        for (int k = 0; k < K; ++k) warps[k][thread / 32] = s[k];
      __syncthreads();
      // If the block has fewer than 32 warps, several lanes read the result of the same warp. Shuffles within
      // groups of kThreads / 32 lanes then combine each warp's result exactly once.
#pragma unroll
      for (int k = 0; k < K; ++k) s[k] = warps[k][lane % (kThreads / 32)];
      lanes(kThreads / 64);
    }
  }
};

/// T is the element type. If results are rounded to bf16, fast exponentials suffice.
template <class T, bool log>
struct SoftmaxForward {
  static constexpr int kInputs = 1;
  static constexpr float kNeutral = -kInfinity;  // leaves every State unchanged
  struct State {
    float max, sum;  // of x, and of exp(x - max)
    float scale;     // 1 / sum, or log(sum); set by finish()
  };
  __device__ static State identity() {
    State s;  // member by member: nvcc would place a constant aggregate in global memory
    s.max = -kInfinity, s.sum = 0, s.scale = 0;
    return s;
  }
  /// A row with NaN or +inf gets the sum NaN. fmaxf() ignores NaN, but exp(NaN) is NaN. For +inf, x - max is
  /// inf - inf, which is NaN.
  template <int N>
  __device__ static State of(const float (&x)[1][N]) {
    State s = identity();
#pragma unroll
    for (int i = 0; i < N; ++i) s.max = fmaxf(s.max, x[0][i]);
#pragma unroll
    for (int i = 0; i < N; ++i) s.sum += x[0][i] == -kInfinity ? 0.0f : exp_for<T>(x[0][i] - s.max);
    return s;
  }
  __device__ static State merge(State a, State b) {
    const float max = fmaxf(a.max, b.max);
    return {max, scaled(a, max) + scaled(b, max), 0};
  }
  /// Reduces over the threads of a row. Every thread gets the result.
  template <class Row>
  __device__ static State all_reduce(State s) {
    const float max = Row::max(s.max);
    float sum[1] = {scaled(s, max)};
    Row::sum(sum);
    return {max, sum[0], 0};
  }
  __device__ static State finish(State s) {
    s.scale = log ? logf(s.sum) : 1.0f / s.sum;
    return s;
  }
  __device__ static float result(State s, float x) {
    return log ? (x - s.max) - s.scale : exp_for<T>(x - s.max) * s.scale;
  }

  /// Reduces a row whose elements stay in registers. To compute each exponential only once, softmax replaces
  /// x by exp(x - max), from which register_result() computes the result.
  template <class Row, int N>
  __device__ static State reduce_registers(float (&x)[1][N]) {
    float max = -kInfinity, sum[1] = {0};
#pragma unroll
    for (int i = 0; i < N; ++i) max = fmaxf(max, x[0][i]);
    max = Row::max(max);
#pragma unroll
    for (int i = 0; i < N; ++i) {
      const float e = exp_for<T>(x[0][i] - max);
      sum[0] += e;
      if (!log) x[0][i] = e;
    }
    Row::sum(sum);
    return finish({max, sum[0], 0});
  }
  __device__ static float register_result(State s, float x) { return log ? result(s, x) : x * s.scale; }

 private:
  __device__ static float scaled(State s, float max) {
    return s.max == -kInfinity ? s.sum : s.sum * expf(s.max - max);
  }
};

template <class T, bool log>
struct SoftmaxBackward {
  static constexpr int kInputs = 2;  // y, dy
  static constexpr float kNeutral = 0;
  using State = float;
  __device__ static State identity() { return 0; }
  template <int N>
  __device__ static State of(const float (&x)[2][N]) {
    float sum = 0;
#pragma unroll
    for (int i = 0; i < N; ++i) sum += log ? x[1][i] : x[0][i] * x[1][i];
    return sum;
  }
  __device__ static State merge(State a, State b) { return a + b; }
  template <class Row>
  __device__ static State all_reduce(State s) {
    float sum[1] = {s};
    Row::sum(sum);
    return sum[0];
  }
  __device__ static State finish(State s) { return s; }
  __device__ static float result(State sum, float y, float dy) {
    return log ? dy - exp_for<T>(y) * sum : y * (dy - sum);
  }

  template <class Row, int N>
  __device__ static State reduce_registers(float (&x)[2][N]) {
    return all_reduce<Row>(of(x));
  }
  __device__ static float register_result(State sum, float y, float dy) { return result(sum, y, dy); }
};

template <class T, int K>
struct RowInputs {
  const T* x[K];
};

template <class Op>
__device__ __forceinline__ float row_result(const typename Op::State& s, const float (&x)[1]) {
  return Op::result(s, x[0]);
}
template <class Op>
__device__ __forceinline__ float row_result(const typename Op::State& s, const float (&x)[2]) {
  return Op::result(s, x[0], x[1]);
}
template <class Op>
__device__ __forceinline__ float register_result(const typename Op::State& s, const float (&x)[1]) {
  return Op::register_result(s, x[0]);
}
template <class Op>
__device__ __forceinline__ float register_result(const typename Op::State& s, const float (&x)[2]) {
  return Op::register_result(s, x[0], x[1]);
}

/// Resident threads per SM that row_in_registers() is compiled for (launch bounds). A block waits for its
/// whole row while other blocks load theirs. 1536 threads, such as three blocks of 512, have 40 registers
/// each. Two inputs, or scalar loads with an address each, need 64 registers.
template <class Op, int V>
inline constexpr int kRowThreads = Op::kInputs == 1 && V > 1 ? 1536 : 1024;

/// A thread holds kElements elements: kElements / V packs of V, kThreads packs apart. If a row has one warp,
/// a block has blockDim.y rows; otherwise a block has one row.
template <class Op, class T, int kThreads, int kElements, int V>
__global__ void __launch_bounds__(kThreads == 32 ? 128 : kThreads,
                                  kThreads == 32 ? 1 : kRowThreads<Op, V> / kThreads)
    row_in_registers(RowInputs<T, Op::kInputs> in, T* out, std::int64_t rows, int n) {
  static_assert(kElements % V == 0);
  const std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * blockDim.y + threadIdx.y;
  if (row >= rows) return;  // uniform over the warp, and over larger blocks
  const int thread = static_cast<int>(threadIdx.x);
  float x[Op::kInputs][kElements];
#pragma unroll
  for (int k = 0; k < Op::kInputs; ++k) {
    const T* const from = in.x[k] + row * n;
#pragma unroll
    for (int i = 0; i < kElements; i += V) {
      const int at = (i / V * kThreads + thread) * V;
      const auto pack = unpacked(pack_or<V>(from + at, at < n, store<T>(Op::kNeutral)));
#pragma unroll
      for (int j = 0; j < V; ++j) x[k][i + j] = pack.v[j];
    }
  }
  const typename Op::State s = Op::template reduce_registers<RowThreads<kThreads>>(x);
#pragma unroll
  for (int i = 0; i < kElements; i += V) {
    const int at = (i / V * kThreads + thread) * V;
    if (at >= n) break;
    Pack<T, V> pack;
#pragma unroll
    for (int j = 0; j < V; ++j) {
      float element[Op::kInputs];
#pragma unroll
      for (int k = 0; k < Op::kInputs; ++k) element[k] = x[k][i + j];
      pack.v[j] = store<T>(register_result<Op>(s, element));
    }
    *reinterpret_cast<Pack<T, V>*>(out + row * n + at) = pack;
  }
}

/// A thread has 16 elements in flight with vector loads, or 8 with scalar loads.
template <class Op, class T, int V>
__global__ void __launch_bounds__(512, 2) row_streamed(RowInputs<T, Op::kInputs> in, T* out, std::int64_t n) {
  constexpr int kPacks = V > 1 ? 16 / V / Op::kInputs : 8 / Op::kInputs, kStep = 512 * V;
  const std::int64_t row = blockIdx.x;
  const auto over_row = [&](const auto& f) {
    for (std::int64_t at = threadIdx.x * V; at < n; at += kPacks * kStep) {
      float x[Op::kInputs][kPacks * V];
#pragma unroll
      for (int k = 0; k < Op::kInputs; ++k)
#pragma unroll
        for (int p = 0; p < kPacks; ++p) {
          const std::int64_t place = at + p * kStep;
          const T* const from = in.x[k] + (row * n + place);
          const auto pack = unpacked(pack_or<V>(from, place < n, store<T>(Op::kNeutral)));
#pragma unroll
          for (int j = 0; j < V; ++j) x[k][p * V + j] = pack.v[j];
        }
      f(x, at);
    }
  };
  typename Op::State s = Op::identity();
  over_row([&](const auto& x, std::int64_t) { s = Op::merge(s, Op::of(x)); });
  s = Op::finish(Op::template all_reduce<RowThreads<512>>(s));
  over_row([&](const auto& x, std::int64_t at) {
#pragma unroll
    for (int p = 0; p < kPacks; ++p) {
      const std::int64_t place = at + p * kStep;
      if (place >= n) break;
      Pack<T, V> pack;
#pragma unroll
      for (int j = 0; j < V; ++j) {
        float element[Op::kInputs];
#pragma unroll
        for (int k = 0; k < Op::kInputs; ++k) element[k] = x[k][p * V + j];
        pack.v[j] = store<T>(row_result<Op>(s, element));
      }
      *reinterpret_cast<Pack<T, V>*>(out + row * n + place) = pack;
    }
  });
}

inline constexpr int kRowPartThreads = 256;
/// Elements that a thread has in flight.
inline constexpr int kRowPartBatch = 8;

/// Visits this block's part of a row, in batches: calls f(elements, index of the first element, end of the
/// part). A part has `each` of the row's n elements. Elements past the end of the part are replaced by
/// kNeutral.
template <class Op, class T, class F>
__device__ __forceinline__ void over_part(const RowInputs<T, Op::kInputs>& in, std::int64_t n,
                                          std::int64_t each, const F& f) {
  const std::int64_t row = blockIdx.y, begin = blockIdx.x * each, end = std::min(begin + each, n);
  for (std::int64_t at = begin + threadIdx.x; at < end; at += kRowPartThreads * kRowPartBatch) {
    float x[Op::kInputs][kRowPartBatch];
#pragma unroll
    for (int k = 0; k < Op::kInputs; ++k)
#pragma unroll
      for (int i = 0; i < kRowPartBatch; ++i) {
        const std::int64_t place = at + i * kRowPartThreads;
        x[k][i] = place < end ? load(in.x[k][row * n + place]) : Op::kNeutral;
      }
    f(x, at, end);
  }
}

/// The first of two launches for rows that several blocks share: s computes the State (partial result) of
/// each part of each row. Grid (parts, rows). `states` is (rows, parts).
template <class Op, class T>
__global__ void __launch_bounds__(kRowPartThreads, 4)
    row_part_states(RowInputs<T, Op::kInputs> in, std::int64_t n, std::int64_t each,
                    typename Op::State* states) {
  typename Op::State s = Op::identity();
  over_part<Op>(in, n, each, [&](const auto& x, std::int64_t, std::int64_t) { s = Op::merge(s, Op::of(x)); });
  s = Op::template all_reduce<RowThreads<kRowPartThreads>>(s);
  if (threadIdx.x == 0) states[static_cast<std::int64_t>(blockIdx.y) * gridDim.x + blockIdx.x] = s;
}

/// The second launch: computes the results. Every block first merges the States of its row, all in the same
/// order. There are at most kRowPartThreads parts.
template <class Op, class T>
__global__ void __launch_bounds__(kRowPartThreads, 4)
    row_part_results(RowInputs<T, Op::kInputs> in, T* out, std::int64_t n, std::int64_t each,
                     const typename Op::State* states) {
  const std::int64_t row = blockIdx.y;
  typename Op::State s = Op::identity();
  if (threadIdx.x < gridDim.x) s = states[row * gridDim.x + threadIdx.x];
  s = Op::finish(Op::template all_reduce<RowThreads<kRowPartThreads>>(s));
  over_part<Op>(in, n, each, [&](const auto& x, std::int64_t at, std::int64_t end) {
#pragma unroll
    for (int i = 0; i < kRowPartBatch; ++i) {
      const std::int64_t place = at + i * kRowPartThreads;
      if (place >= end) break;
      float element[Op::kInputs];
#pragma unroll
      for (int k = 0; k < Op::kInputs; ++k) element[k] = x[k][i];
      out[row * n + place] = store<T>(row_result<Op>(s, element));
    }
  });
}

inline constexpr int kColumnThreads = 8;  // threads per row

/// Block (32, 8): 32 adjacent rows.
template <class Op, class T>
__global__ void __launch_bounds__(32 * kColumnThreads)
    columns(RowInputs<T, Op::kInputs> in, T* out, std::int64_t n, std::int64_t inner, std::int64_t tiles) {
  using State = typename Op::State;
  __shared__ State parts[kColumnThreads][32];
  const std::int64_t outer = blockIdx.x / tiles, column = (blockIdx.x - outer * tiles) * 32 + threadIdx.x;
  const bool inside = column < inner;
  const std::int64_t first = outer * n * inner + column;
  State s = Op::identity();
  float x[Op::kInputs][1];
  if (inside)
    for (std::int64_t i = threadIdx.y; i < n; i += kColumnThreads) {
#pragma unroll
      for (int k = 0; k < Op::kInputs; ++k) x[k][0] = load(in.x[k][first + i * inner]);
      s = Op::merge(s, Op::of(x));
    }
  parts[threadIdx.y][threadIdx.x] = s;
  __syncthreads();
  if (!inside) return;
  s = parts[0][threadIdx.x];
#pragma unroll
  for (int i = 1; i < kColumnThreads; ++i) s = Op::merge(s, parts[i][threadIdx.x]);
  s = Op::finish(s);
  for (std::int64_t i = threadIdx.y; i < n; i += kColumnThreads) {
    float element[Op::kInputs];
#pragma unroll
    for (int k = 0; k < Op::kInputs; ++k) element[k] = load(in.x[k][first + i * inner]);
    out[first + i * inner] = store<T>(row_result<Op>(s, element));
  }
}

/// The longest row that a block can hold in registers.
inline constexpr std::int64_t kMaxRegisterRow = 1024 * 16;
/// If there are fewer long rows than this, several blocks share each row, kRowPartBlocks in all: two per SM
/// of an H100.
inline constexpr std::int64_t kSplitRowsBelow = 132, kRowPartBlocks = 132 * 2;

template <class Op, class T>
void launch_row_parts(const RowInputs<T, Op::kInputs>& in, T* out, std::int64_t rows, std::int64_t n,
                      const LaunchContext& context) {
  const cudaStream_t stream = stream_of(context);
  constexpr std::int64_t kLeast = kRowPartThreads * kRowPartBatch;  // elements
  const std::int64_t wanted = std::min<std::int64_t>((kRowPartBlocks + rows - 1) / rows, kRowPartThreads);
  const std::int64_t each = std::max(kLeast, (n + wanted - 1) / wanted);
  const auto parts = static_cast<unsigned>((n + each - 1) / each);
  const dim3 grid(parts, static_cast<unsigned>(rows));
  const Scratch<typename Op::State> states(context.device, rows * parts);
  launch(&row_part_states<Op, T>, grid, kRowPartThreads, 0, stream, in, n, each, states.data());
  launch(&row_part_results<Op, T>, grid, kRowPartThreads, 0, stream, in, out, n, each, states.data());
}

template <class Op, class T, int V>
void launch_rows(const RowInputs<T, Op::kInputs>& in, T* out, std::int64_t rows, std::int64_t n,
                 cudaStream_t stream) {
  const auto blocks = [&](std::int64_t rows_per_block) {
    return static_cast<unsigned>((rows + rows_per_block - 1) / rows_per_block);
  };
  const int count = static_cast<int>(std::min<std::int64_t>(n, 1 << 30));
  if (n <= 32 * 8)
    launch(&row_in_registers<Op, T, 32, 8, V>, blocks(4), {32, 4}, 0, stream, in, out, rows, count);
  else if (n <= 32 * 32)
    launch(&row_in_registers<Op, T, 32, 32, V>, blocks(4), {32, 4}, 0, stream, in, out, rows, count);
  else if (n <= 128 * 16)
    launch(&row_in_registers<Op, T, 128, 16, V>, blocks(1), 128, 0, stream, in, out, rows, count);
  else if (n <= 256 * 16)
    launch(&row_in_registers<Op, T, 256, 16, V>, blocks(1), 256, 0, stream, in, out, rows, count);
  else if (n <= 512 * 16)
    launch(&row_in_registers<Op, T, 512, 16, V>, blocks(1), 512, 0, stream, in, out, rows, count);
  else if (n <= kMaxRegisterRow)
    launch(&row_in_registers<Op, T, 1024, 16, V>, blocks(1), 1024, 0, stream, in, out, rows, count);
  else launch(&row_streamed<Op, T, V>, blocks(1), 512, 0, stream, in, out, n);
}

/// Chooses and launches the kernel for this shape. Inputs and output are dense. The output may alias an
/// input. With fewer than `split_below` long rows, several blocks share each row.
template <class Op, class T>
void launch_softmax(const SoftmaxShape& shape, const RowInputs<T, Op::kInputs>& in, T* out,
                    const LaunchContext& context, std::int64_t split_below = kSplitRowsBelow) {
  const cudaStream_t stream = stream_of(context);
  if (shape.outer * shape.n * shape.inner == 0) return;
  if (shape.inner > 1) {
    const std::int64_t tiles = (shape.inner + 31) / 32;
    return launch(&columns<Op, T>, static_cast<unsigned>(shape.outer * tiles), {32, kColumnThreads}, 0,
                  stream, in, out, shape.n, shape.inner, tiles);
  }
  if (shape.n > kMaxRegisterRow && shape.outer < split_below)
    return launch_row_parts<Op, T>(in, out, shape.outer, shape.n, context);
  constexpr int V = 16 / sizeof(T);
  bool packs = shape.n % V == 0 && aligned<T, V>(out);
  for (const T* x : in.x) packs = packs && aligned<T, V>(x);
  if (packs) launch_rows<Op, T, V>(in, out, shape.outer, shape.n, stream);
  else launch_rows<Op, T, 1>(in, out, shape.outer, shape.n, stream);
}

}  // namespace tapestry::kernels::cuda
