#pragma once
// Losses over classes, computed without storing probabilities, and squared errors. class_rows.cuh maps rows
// of classes to threads.
#include <algorithm>
#include <cmath>

#include "tapestry/core/error.h"
#include "tapestry/kernels/cuda/bad_index.cuh"
#include "tapestry/kernels/cuda/class_rows.cuh"
#include "tapestry/kernels/cuda/last_block.cuh"
#include "tapestry/kernels/cuda/pointwise.cuh"
#include "tapestry/kernels/cuda/sums.cuh"
#include "tapestry/kernels/ops/loss.h"
#include "tapestry/kernels/scratch.h"

namespace tapestry::kernels::cuda {

/// Kernel parameters of a ClassLoss. With the target distribution t, the weight of class c in the loss is
///    q_c = weight_c (target_scale t_c + uniform)
/// where target_scale = 1 - smoothing and uniform = smoothing / classes. For a target given as a class index,
/// q has only the uniform part; the term of the target class is added separately.
template <class T>
struct ClassRows {
  RowShape shape;
  const T *x, *probabilities;
  const std::int64_t* target;
  const float* weight;
  float* stats;
  std::int64_t ignore_index;
  float target_scale, uniform;

  __device__ float weight_of(std::int64_t c) const { return weight ? weight[c] : 1.0f; }
  __device__ std::int64_t target_of(std::int64_t row) const { return target ? target[row] : ignore_index; }
  __device__ bool is_class(std::int64_t t) const { return t >= 0 && t < shape.n; }
  template <class Batch>
  __device__ void read_q(const Batch& batch, std::int64_t base, float (&q)[Batch::kSize]) const {
#pragma unroll
    for (int j = 0; j < Batch::kSize; ++j) q[j] = 0;
    if (probabilities) batch.read(probabilities + base, q, 0.0f);
#pragma unroll
    for (int j = 0; j < Batch::kSize; ++j)
      q[j] = batch.has(j) ? weight_of(batch.class_of(j)) * (target_scale * q[j] + uniform) : 0.0f;
  }
};

/// Online softmax terms of a row (see softmax.cuh): the maximum of x, the sum of exp(x - max), the sum of q,
/// and the sum of q (max - x), whose terms all have the same sign. If all x are -inf, max counts as 0.
template <class T, bool with_q>
struct CrossEntropyTerms {
  struct State {
    float max, sum, q, gap;
  };
  __device__ static State identity() {
    State s;  // see SoftmaxForward::identity()
    s.max = -kInfinity, s.sum = 0, s.q = 0, s.gap = 0;
    return s;
  }
  __device__ static float base(float max) { return max == -kInfinity ? 0.0f : max; }
  /// Adds a batch of classes. Entries of the batch that stand for no class (past the end of the row) must
  /// have x = -inf and q = 0.
  template <class Batch>
  __device__ static void add(State& s, const Batch& batch, const float (&x)[Batch::kSize],
                             const float (&q)[Batch::kSize]) {
    float max = s.max;
#pragma unroll
    for (int j = 0; j < Batch::kSize; ++j) max = fmaxf(max, x[j]);
    s = rescaled(s, max);
    const float from = base(max);
#pragma unroll
    for (int j = 0; j < Batch::kSize; ++j) {
      s.sum += exp_for<T>(x[j] - from);
      if constexpr (with_q) {
        s.q += q[j];
        s.gap += batch.has(j) ? q[j] * (from - x[j]) : 0.0f;
      }
    }
  }
  __device__ static State merge(State a, State b) {
    const float max = fmaxf(a.max, b.max);
    a = rescaled(a, max);
    b = rescaled(b, max);
    return {max, a.sum + b.sum, a.q + b.q, a.gap + b.gap};
  }
  /// Reduces over the threads of a row. Every thread gets the result.
  template <class Row>
  __device__ static State all_reduce(State s) {
    s = rescaled(s, Row::max(s.max));
    if constexpr (with_q) {
      float sums[3] = {s.sum, s.q, s.gap};
      Row::sum(sums);
      return {s.max, sums[0], sums[1], sums[2]};
    } else {
      float sums[1] = {s.sum};
      Row::sum(sums);
      return {s.max, sums[0], 0, 0};
    }
  }

 private:
  __device__ static State rescaled(State s, float max) {
    s.sum *= expf(s.max - base(max));
    if constexpr (with_q) s.gap += s.q * (base(max) - base(s.max));
    s.max = max;
    return s;
  }
};

/// The number of blocks per SM, for the launch bounds. If a kernel computes q (see ClassRows), a thread needs
/// 64 registers, so at most 1024 threads fit on an SM.
template <class Mapping>
constexpr int blocks_per_sm(bool with_q) {
  return with_q ? std::min(Mapping::kBlocks, 1024 / Mapping::kThreads) : Mapping::kBlocks;
}

/// The State of this thread's classes.
template <class T, bool with_q, class Mapping>
__device__ __forceinline__ typename CrossEntropyTerms<T, with_q>::State terms_of(const Mapping& mapping,
                                                                                 const ClassRows<T>& a) {
  using Terms = CrossEntropyTerms<T, with_q>;
  const T* const x = a.x + mapping.base;
  typename Terms::State s = Terms::identity();
  if (mapping.inside)
    mapping.template for_each_batch<with_q ? 4 : 16>(a.shape, x, [&](const auto& batch) {
      constexpr int N = std::remove_cvref_t<decltype(batch)>::kSize;
      float values[N];
      [[maybe_unused]] float q[N] = {};
      batch.read(x, values, -kInfinity);
      if constexpr (with_q) a.read_q(batch, mapping.base, q);
      Terms::add(s, batch, values, q);
    });
  return s;
}

/// The mean of the losses, in the launch that computes them: the last block adds all of them. With more rows,
/// one block would take longer than a second launch.
inline constexpr std::int64_t kMeanRows = 4096;
struct MeanOfRows {
  float *mean, *total;  // null if this launch does not compute them
  std::uint32_t* counter;
  int rows;

  /// Every thread of every block calls it once, after the block has written its losses and weights.
  template <int kThreads>
  __device__ void finish(const float* losses, const float* weights) const {
    if (!mean || !is_last_block(counter, gridDim.x)) return;
    __shared__ double parts[2][kThreads / 32];
    const int thread = static_cast<int>(threadIdx.y * blockDim.x + threadIdx.x);
    double sums[2] = {};
#pragma unroll 1
    for (int row = thread; row < rows; row += kThreads) {
      sums[0] += losses[row];
      sums[1] += weights[row];
    }
    sum_warp(sums);
    if (thread % 32 == 0)
#pragma unroll
      for (int k = 0; k < 2; ++k) parts[k][thread / 32] = sums[k];
    __syncthreads();
    if (thread != 0) return;
    for (int warp = 1; warp < kThreads / 32; ++warp)
#pragma unroll
      for (int k = 0; k < 2; ++k) sums[k] += parts[k][warp];
    *total = static_cast<float>(sums[1]);
    *mean = static_cast<float>(sums[0] / sums[1]);
  }
};

template <class T>
struct RowLosses {
  float *losses, *weights;
  BadIndexCell first_bad;
  MeanOfRows mean;

  /// Computes and writes the loss and the weight of a row from its State s. x points to the first element of
  /// the row. `target` is the row's target; the caller loads it before it reduces the row, so that the
  /// latency of the two overlaps.
  template <bool with_q>
  __device__ void write(const ClassRows<T>& a, std::int64_t row, const T* x, std::int64_t target,
                        typename CrossEntropyTerms<T, with_q>::State s) const {
    const float log_sum = logf(s.sum) + (s.max - s.max);  // NaN if all x are -inf
    a.stats[2 * row] = s.max;
    a.stats[2 * row + 1] = log_sum;
    float loss = with_q ? s.gap + (s.q == 0 ? 0.0f : s.q * log_sum) : 0.0f, weight = 1;
    if (a.target) {
      if (target == a.ignore_index || !a.is_class(target)) {
        loss = weight = 0;
        if (target != a.ignore_index) report_bad(first_bad, row);
      } else {
        weight = a.weight_of(target);
        loss += a.target_scale * weight * (log_sum - (load(x[target * a.shape.inner]) - s.max));
      }
    }
    losses[row] = loss;
    weights[row] = weight;
  }
};

template <class Mapping, class T, bool with_q>
__global__ void __launch_bounds__(Mapping::kThreads, blocks_per_sm<Mapping>(with_q))
    cross_entropy_rows(ClassRows<T> a, RowLosses<T> to) {
  const Mapping mapping(a.shape);
  const std::int64_t target = mapping.leader ? a.target_of(mapping.row) : 0;
  const auto s = mapping.template merge<CrossEntropyTerms<T, with_q>>(terms_of<T, with_q>(mapping, a));
  if (mapping.leader) to.template write<with_q>(a, mapping.row, a.x + mapping.base, target, s);
  to.mean.template finish<Mapping::kThreads>(to.losses, to.weights);
}

/// The first of two launches for split rows: computes the State (partial result) of each part. `states` is
/// (rows, parts).
template <class T, bool with_q>
__global__ void __launch_bounds__(SplitRow::kThreads, SplitRow::kBlocks)
    cross_entropy_parts(ClassRows<T> a, typename CrossEntropyTerms<T, with_q>::State* states) {
  const SplitRow mapping(a.shape);
  const auto s = mapping.template merge<CrossEntropyTerms<T, with_q>>(terms_of<T, with_q>(mapping, a));
  if (mapping.leader) states[blockIdx.x] = s;
}
/// The second launch for split rows: one warp merges the States of a row's parts and writes the row's loss.
template <class T, bool with_q>
__global__ void __launch_bounds__(WarpPerRow::kThreads, WarpPerRow::kBlocks)
    cross_entropy_join(ClassRows<T> a, const typename CrossEntropyTerms<T, with_q>::State* states,
                       RowLosses<T> to) {
  const WarpPerRow mapping(a.shape);
  const int lane = static_cast<int>(threadIdx.x);
  const std::int64_t target = mapping.leader ? a.target_of(mapping.row) : 0;
  auto s = CrossEntropyTerms<T, with_q>::identity();
  if (mapping.inside && lane < a.shape.parts) s = states[mapping.row * a.shape.parts + lane];
  s = CrossEntropyTerms<T, with_q>::template all_reduce<RowThreads<32>>(s);
  if (mapping.leader) to.template write<with_q>(a, mapping.row, a.x + mapping.base, target, s);
  to.mean.template finish<WarpPerRow::kThreads>(to.losses, to.weights);
}

struct RowGrad {
  const float* grad;
  bool each_row;
  const float* divisor;
  __device__ float of(std::int64_t row) const {
    const float g = grad ? grad[each_row ? row : 0] : 1.0f;
    if (!divisor) return g;
    return *divisor == 0 ? 0.0f : g / *divisor;
  }
};

struct SumOfQ {
  using State = float;
  __device__ static State merge(State a, State b) { return a + b; }
  template <class Row>
  __device__ static State all_reduce(State s) {
    float sum[1] = {s};
    Row::sum(sum);
    return sum[0];
  }
};
/// The sum of q_c (the weight of class c in the loss, see ClassRows) over the classes of a row, or of a part
/// of it. Every thread of the row gets the sum.
template <class Mapping, class T>
__device__ __forceinline__ float sum_of_q(const Mapping& mapping, const ClassRows<T>& a) {
  float sum = 0;
  if (mapping.inside)
    mapping.template for_each_batch<4>(a.shape, a.x + mapping.base, [&](const auto& batch) {
      constexpr int N = std::remove_cvref_t<decltype(batch)>::kSize;
      float q[N];
      a.read_q(batch, mapping.base, q);
#pragma unroll
      for (int j = 0; j < N; ++j) sum += q[j];
    });
  return mapping.template merge<SumOfQ>(sum);
}

/// Used only where several blocks share a row (SplitRow): computes the sum of q (ClassRows::read_q()) over
/// each part of a row. `sums` is (rows, parts). Backward needs the sum over the whole row, so each warp of
/// cross_entropy_backward_rows() adds the parts of its row.
template <class T>
__global__ void __launch_bounds__(SplitRow::kThreads, SplitRow::kBlocks)
    cross_entropy_q_parts(ClassRows<T> a, float* sums) {
  const SplitRow mapping(a.shape);
  const float sum = sum_of_q(mapping, a);
  if (mapping.leader) sums[blockIdx.x] = sum;
}

/// Computes dx. q_sums has the sums that cross_entropy_q_parts() computed, and is used for split rows only.
template <class Mapping, class T, bool with_q>
__global__ void __launch_bounds__(Mapping::kThreads, blocks_per_sm<Mapping>(with_q))
    cross_entropy_backward_rows(ClassRows<T> a, RowGrad g, const float* q_sums, T* dx) {
  const Mapping mapping(a.shape);
  const T* const x = a.x + mapping.base;
  T* const out = dx + mapping.base;
  float sum = 0;
  if constexpr (with_q && std::is_same_v<Mapping, SplitRow>) {
    const int lane = static_cast<int>(threadIdx.x) % 32;  // each warp adds up all kMaxParts sums
    if (lane < a.shape.parts) sum = q_sums[mapping.row * a.shape.parts + lane];
    sum = SumOfQ::all_reduce<RowThreads<32>>(sum);
  } else if constexpr (with_q) {
    sum = sum_of_q(mapping, a);
  }
  if (!mapping.inside) return;
  // Load these values here, so that their loads overlap the load of the target.
  const float grad = g.of(mapping.row), max = a.stats[2 * mapping.row],
              log_sum = a.stats[2 * mapping.row + 1];
  int hit_class = -1;
  float hit = 0;
  if (a.target) {
    const std::int64_t target = a.target[mapping.row];
    if (target == a.ignore_index || !a.is_class(target))
      return mapping.template for_each_batch<16>(a.shape, x, [&](const auto& batch) {
        const float zeros[std::remove_cvref_t<decltype(batch)>::kSize] = {};
        batch.write(out, zeros);
      });
    hit = a.target_scale * a.weight_of(target);
    hit_class = static_cast<int>(target);
  }
  const float scale = grad * (hit + sum);
  mapping.template for_each_batch<with_q ? 4 : 16>(a.shape, x, [&](const auto& batch) {
    constexpr int N = std::remove_cvref_t<decltype(batch)>::kSize;
    float values[N];
    [[maybe_unused]] float q[N] = {};
    batch.read(x, values, 0.0f);
    if constexpr (with_q) a.read_q(batch, mapping.base, q);
#pragma unroll
    for (int j = 0; j < N; ++j) {
      values[j] = scale * exp_for<T>((values[j] - max) - log_sum);
      if constexpr (with_q) values[j] -= grad * q[j];
      if (batch.class_of(j) == hit_class) values[j] -= grad * hit;
    }
    batch.write(out, values);
  });
}

template <class Mapping, class T>
__global__ void __launch_bounds__(Mapping::kThreads, Mapping::kBlocks)
    cross_entropy_target_backward_rows(ClassRows<T> a, RowGrad g, T* dtarget) {
  const Mapping mapping(a.shape);
  if (!mapping.inside) return;
  const T* const x = a.x + mapping.base;
  const float grad = g.of(mapping.row) * a.target_scale, max = a.stats[2 * mapping.row],
              log_sum = a.stats[2 * mapping.row + 1];
  mapping.template for_each_batch<16>(a.shape, x, [&](const auto& batch) {
    constexpr int N = std::remove_cvref_t<decltype(batch)>::kSize;
    float values[N];
    batch.read(x, values, 0.0f);
#pragma unroll
    for (int j = 0; j < N; ++j)
      if (batch.has(j)) values[j] = grad * a.weight_of(batch.class_of(j)) * (log_sum - (values[j] - max));
    batch.write(dtarget + mapping.base, values);
  });
}

inline constexpr int kNllThreads = 128;

template <class T>
__global__ void __launch_bounds__(kNllThreads) nll_rows(ClassRows<T> a, RowLosses<T> to) {
  const std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * kNllThreads + threadIdx.x;
  if (row < a.shape.rows) {
    const std::int64_t target = a.target[row];
    float loss = 0, weight = 0;
    if (target != a.ignore_index) {
      if (a.is_class(target)) {
        const std::int64_t outer = row / a.shape.inner, i = row - outer * a.shape.inner;
        weight = a.weight_of(target);
        loss = -weight * load(a.x[(outer * a.shape.n + target) * a.shape.inner + i]);
      } else {
        report_bad(to.first_bad, row);
      }
    }
    to.losses[row] = loss;
    to.weights[row] = weight;
  }
  to.mean.template finish<kNllThreads>(to.losses, to.weights);
}

template <class Mapping, class T>
__global__ void __launch_bounds__(Mapping::kThreads, Mapping::kBlocks)
    nll_backward_rows(ClassRows<T> a, RowGrad g, T* dx) {
  const Mapping mapping(a.shape);
  if (!mapping.inside) return;
  const std::int64_t target = a.target[mapping.row];
  const bool good = target != a.ignore_index && a.is_class(target);
  const float hit = good ? -a.weight_of(target) * g.of(mapping.row) : 0.0f;
  T* const out = dx + mapping.base;
  mapping.template for_each_batch<16>(a.shape, out, [&](const auto& batch) {
    constexpr int N = std::remove_cvref_t<decltype(batch)>::kSize;
    float values[N];
#pragma unroll
    for (int j = 0; j < N; ++j) values[j] = good && batch.class_of(j) == target ? hit : 0.0f;
    batch.write(out, values);
  });
}

// ---- launches

template <class T>
ClassRows<T> class_rows(const char* op, const ClassRowsArgs& a) {
  constexpr std::int64_t kMost = std::int64_t{1} << 30;
  check(a.classes <= kMost, "[", op, "] ", a.classes, " classes are too many for a CUDA kernel; use at most ",
        kMost);
  return {.shape = {.rows = a.outer * a.inner,
                    .inner = a.inner,
                    .tiles = (a.inner + 31) / 32,
                    .n = static_cast<int>(a.classes)},
          .x = a.x.as<T>(),
          .probabilities = a.target ? nullptr : a.probabilities.as<T>(),
          .target = a.target,
          .weight = a.weight.as<float>(),
          .stats = a.stats.as<float>(),
          .ignore_index = a.ignore_index,
          .target_scale = static_cast<float>(1 - a.smoothing),
          .uniform = static_cast<float>(a.smoothing / static_cast<double>(a.classes))};
}

inline bool needs_q(const ClassRowsArgs& a) { return !a.target || a.smoothing != 0; }
inline RowGrad row_grad(const LossGrad& g) { return {g.grad.as<float>(), g.each_row, g.divisor.as<float>()}; }

/// A functor for launch_sums().
struct WeightedMean {
  static constexpr int kSums = 2, kPack = 4;
  const float *losses, *weights;
  float *mean, *total;

  template <int V>
  __device__ void add(std::int64_t i, float (&sums)[2]) const {
    const auto loss = *reinterpret_cast<const Pack<float, V>*>(losses + i),
               weight = *reinterpret_cast<const Pack<float, V>*>(weights + i);
#pragma unroll
    for (int j = 0; j < V; ++j) {
      sums[0] += loss.v[j];
      sums[1] += weight.v[j];
    }
  }
  __device__ void finish(const double (&sums)[2]) const {
    *total = static_cast<float>(sums[1]);
    *mean = static_cast<float>(sums[0] / sums[1]);
  }
};
/// What a kernel of losses writes. Its launch computes the mean too if there are few rows.
template <class T>
RowLosses<T> row_losses(const ClassLossArgs& a, const LaunchContext& context) {
  const std::int64_t rows = a.rows.outer * a.rows.inner;
  const bool has_mean = a.mean && rows > 0 && rows <= kMeanRows;
  return {a.losses.as<float>(), a.weights.as<float>(), a.first_bad,
          has_mean ? MeanOfRows{a.mean.as<float>(), a.total.as<float>(), counters_of(context),
                                static_cast<int>(rows)}
                   : MeanOfRows{}};
}
/// Launches what computes the mean otherwise.
template <class T>
void launch_mean(const RowLosses<T>& to, const ClassLossArgs& a, const LaunchContext& context) {
  if (!a.mean || to.mean.mean) return;
  const WeightedMean f{to.losses, to.weights, a.mean.as<float>(), a.total.as<float>()};
  launch_sums(a.rows.outer * a.rows.inner, aligned<float, 4>(f.losses) && aligned<float, 4>(f.weights), f,
              context);
}

template <class T>
void launch_cross_entropy(const LaunchContext& context, const ClassLossArgs& a) {
  const cudaStream_t stream = stream_of(context);
  ClassRows<T> rows = class_rows<T>("cross_entropy", a.rows);
  const RowLosses<T> to = row_losses<T>(a, context);
  const auto go = [&]<bool with_q>() {
    with_row_mapping<T>(
        rows.shape, {rows.x, rows.probabilities}, [&]<class Mapping>(unsigned grid, dim3 block) {
          if constexpr (std::is_same_v<Mapping, SplitRow>) {
            const Scratch<typename CrossEntropyTerms<T, with_q>::State> states(context.device, grid);
            launch(&cross_entropy_parts<T, with_q>, grid, block, 0, stream, rows, states.data());
            launch(&cross_entropy_join<T, with_q>, static_cast<unsigned>((rows.shape.rows + 3) / 4), {32, 4},
                   0, stream, rows, states.data(), to);
          } else {
            launch(&cross_entropy_rows<Mapping, T, with_q>, grid, block, 0, stream, rows, to);
          }
        });
  };
  if (needs_q(a.rows)) go.template operator()<true>();
  else go.template operator()<false>();
  launch_mean(to, a, context);
}

template <class T>
void launch_cross_entropy_backward(const LaunchContext& context, const ClassLossBackwardArgs& a) {
  const cudaStream_t stream = stream_of(context);
  ClassRows<T> rows = class_rows<T>("cross_entropy_backward", a.rows);
  T* const dx = a.dx.as<T>();
  const auto go = [&]<bool with_q>() {
    with_row_mapping<T>(rows.shape, {rows.x, rows.probabilities, dx},
                        [&]<class Mapping>(unsigned grid, dim3 block) {
                          constexpr bool by_parts = with_q && std::is_same_v<Mapping, SplitRow>;
                          const Scratch<float> q_sums(context.device, by_parts ? grid : 0);
                          if constexpr (by_parts)
                            launch(&cross_entropy_q_parts<T>, grid, block, 0, stream, rows, q_sums.data());
                          launch(&cross_entropy_backward_rows<Mapping, T, with_q>, grid, block, 0, stream,
                                 rows, row_grad(a.grad), q_sums.data(), dx);
                        });
  };
  if (needs_q(a.rows)) go.template operator()<true>();
  else go.template operator()<false>();
}

template <class T>
void launch_cross_entropy_target_backward(const LaunchContext& context, const ClassLossBackwardArgs& a) {
  ClassRows<T> rows = class_rows<T>("cross_entropy_target_backward", a.rows);
  T* const dtarget = a.dx.as<T>();
  with_row_mapping<T>(rows.shape, {rows.x, dtarget}, [&]<class Mapping>(unsigned grid, dim3 block) {
    launch(&cross_entropy_target_backward_rows<Mapping, T>, grid, block, 0, stream_of(context), rows,
           row_grad(a.grad), dtarget);
  });
}

template <class T>
void launch_nll_loss(const LaunchContext& context, const ClassLossArgs& a) {
  const ClassRows<T> rows = class_rows<T>("nll_loss", a.rows);
  const RowLosses<T> to = row_losses<T>(a, context);
  if (rows.shape.rows > 0)
    launch(&nll_rows<T>, static_cast<unsigned>((rows.shape.rows + kNllThreads - 1) / kNllThreads),
           kNllThreads, 0, stream_of(context), rows, to);
  launch_mean(to, a, context);
}

template <class T>
void launch_nll_loss_backward(const LaunchContext& context, const ClassLossBackwardArgs& a) {
  ClassRows<T> rows = class_rows<T>("nll_loss_backward", a.rows);
  T* const dx = a.dx.as<T>();
  with_row_mapping<T>(rows.shape, {dx}, [&]<class Mapping>(unsigned grid, dim3 block) {
    launch(&nll_backward_rows<Mapping, T>, grid, block, 0, stream_of(context), rows, row_grad(a.grad), dx);
  });
}

/// A functor for launch_sums().
template <class T>
struct SumSquaredError {
  static constexpr int kSums = 1, kPack = 16 / sizeof(T);
  const T *x, *t;
  T* out;
  double divisor;

  template <int V>
  __device__ void add(std::int64_t i, float (&sums)[1]) const {
    const auto a = *reinterpret_cast<const Pack<T, V>*>(x + i),
               b = *reinterpret_cast<const Pack<T, V>*>(t + i);
#pragma unroll
    for (int j = 0; j < V; ++j) {
      const float d = load(a.v[j]) - load(b.v[j]);
      sums[0] += d * d;
    }
  }
  __device__ void finish(const double (&sums)[1]) const {
    *out = store<T>(static_cast<float>(sums[0] / divisor));
  }
};

template <class T>
void launch_sum_squared_error(const LaunchContext& context, const SumSquaredErrorArgs& a) {
  using F = SumSquaredError<T>;
  const F f{a.x.as<T>(), a.target.as<T>(), a.out.as<T>(), a.divisor};
  launch_sums(a.n, aligned<T, F::kPack>(f.x) && aligned<T, F::kPack>(f.t), f, context);
}

}  // namespace tapestry::kernels::cuda
