#pragma once
// Losses over classes, without ever storing probabilities, and squared errors. class_rows.cuh has the ways to
// share out rows of classes.
#include <algorithm>
#include <cmath>

#include "tapestry/core/error.h"
#include "tapestry/kernels/cuda/class_rows.cuh"
#include "tapestry/kernels/cuda/map.cuh"
#include "tapestry/kernels/cuda/sums.cuh"
#include "tapestry/kernels/ops/loss.h"
#include "tapestry/kernels/scratch.h"

namespace tapestry::kernels::cuda {

/// A ClassLoss as kernels take it. q_c = weight_c (rest t_c + each), where rest t_c is left out for a target
/// class: that one's part is apart.
template <class T>
struct ClassRows {
  RowShape shape;
  const T *x, *probabilities;
  const std::int64_t* target;
  const float* weight;
  float* stats;
  std::int64_t ignore_index;
  float rest, each;

  __device__ float weight_of(std::int64_t c) const { return weight ? weight[c] : 1.0f; }
  __device__ std::int64_t target_of(std::int64_t row) const { return target ? target[row] : ignore_index; }
  __device__ bool is_class(std::int64_t t) const { return t >= 0 && t < shape.n; }
  template <class Batch>
  __device__ void read_q(const Batch& batch, std::int64_t base, float (&q)[Batch::kSize]) const {
    UNROLL for (int j = 0; j < Batch::kSize; ++j) q[j] = 0;
    if (probabilities) batch.read(probabilities + base, q, 0.0f);
    UNROLL for (int j = 0; j < Batch::kSize; ++j) q[j] =
        batch.has(j) ? weight_of(batch.class_of(j)) * (rest * q[j] + each) : 0.0f;
  }
};

/// Online (see softmax.cuh): the largest x, the sum of exp(x - max), and those of q and q (max - x), whose
/// terms are all of one sign. All -inf counts as a max of 0.
template <class T, bool with_q>
struct CrossEntropyTerms {
  struct State {
    float max, sum, q, gap;
  };
  __device__ static State none() {
    State s;  // see SoftmaxForward::none()
    s.max = -kInfinity, s.sum = 0, s.q = 0, s.gap = 0;
    return s;
  }
  __device__ static float base(float max) { return max == -kInfinity ? 0.0f : max; }
  /// x is -inf and q 0 where a batch has no class.
  template <class Batch>
  __device__ static void add(State& s, const Batch& batch, const float (&x)[Batch::kSize],
                             const float (&q)[Batch::kSize]) {
    float max = s.max;
    UNROLL for (int j = 0; j < Batch::kSize; ++j) max = fmaxf(max, x[j]);
    s = raised(s, max);
    const float from = base(max);
    UNROLL for (int j = 0; j < Batch::kSize; ++j) {
      s.sum += exp_for<T>(x[j] - from);
      if constexpr (with_q) {
        s.q += q[j];
        s.gap += batch.has(j) ? q[j] * (from - x[j]) : 0.0f;
      }
    }
  }
  __device__ static State merge(State a, State b) {
    const float max = fmaxf(a.max, b.max);
    a = raised(a, max);
    b = raised(b, max);
    return {max, a.sum + b.sum, a.q + b.q, a.gap + b.gap};
  }
  /// Of a row, from those of its threads.
  template <class Row>
  __device__ static State joined(State s) {
    s = raised(s, Row::max(s.max));
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
  __device__ static State raised(State s, float max) {
    s.sum *= expf(s.max - base(max));
    if constexpr (with_q) s.gap += s.q * (base(max) - base(s.max));
    s.max = max;
    return s;
  }
};

/// q takes registers beside x: 64 in all.
template <class Way>
constexpr int blocks_an_sm(bool with_q) {
  return with_q ? std::min(Way::kBlocks, 1024 / Way::kThreads) : Way::kBlocks;
}

/// What a thread finds out about its row.
template <class T, bool with_q, class Way>
__device__ __forceinline__ typename CrossEntropyTerms<T, with_q>::State terms_of(const Way& way,
                                                                                 const ClassRows<T>& a) {
  using Terms = CrossEntropyTerms<T, with_q>;
  const T* const x = a.x + way.base;
  typename Terms::State s = Terms::none();
  if (way.inside)
    way.template walk<with_q ? 4 : 16>(a.shape, x, [&](const auto& batch) {
      constexpr int N = std::remove_cvref_t<decltype(batch)>::kSize;
      float values[N];
      [[maybe_unused]] float q[N] = {};
      batch.read(x, values, -kInfinity);
      if constexpr (with_q) a.read_q(batch, way.base, q);
      Terms::add(s, batch, values, q);
    });
  return s;
}

template <class T>
struct RowLosses {
  float *losses, *weights;
  std::int64_t* first_bad;

  /// x: the row's first element. target: ClassRows::target_of() of it, read before all else, for reading it
  /// takes as long as the row does.
  template <bool with_q>
  __device__ void write(const ClassRows<T>& a, std::int64_t row, const T* x, std::int64_t target,
                        typename CrossEntropyTerms<T, with_q>::State s) const {
    const float log_sum = logf(s.sum) + (s.max - s.max);  // NaN if all are -inf
    a.stats[2 * row] = s.max;
    a.stats[2 * row + 1] = log_sum;
    float loss = with_q ? s.gap + (s.q == 0 ? 0.0f : s.q * log_sum) : 0.0f, weight = 1;
    if (a.target) {
      if (target == a.ignore_index || !a.is_class(target)) {
        loss = weight = 0;
        if (target != a.ignore_index)
          atomicMin(reinterpret_cast<unsigned long long*>(first_bad), static_cast<unsigned long long>(row));
      } else {
        weight = a.weight_of(target);
        loss += a.rest * weight * (log_sum - (load(x[target * a.shape.inner]) - s.max));
      }
    }
    losses[row] = loss;
    weights[row] = weight;
  }
};

template <class Way, class T, bool with_q>
__global__ void __launch_bounds__(Way::kThreads, blocks_an_sm<Way>(with_q))
    cross_entropy_rows(ClassRows<T> a, RowLosses<T> to) {
  const Way way(a.shape);
  const std::int64_t target = way.leads ? a.target_of(way.row) : 0;
  const auto s = way.template merge<CrossEntropyTerms<T, with_q>>(terms_of<T, with_q>(way, a));
  if (way.leads) to.template write<with_q>(a, way.row, a.x + way.base, target, s);
}

/// The first of two stages: states (rows, parts).
template <class T, bool with_q>
__global__ void __launch_bounds__(PartWay::kThreads, PartWay::kBlocks)
    cross_entropy_parts(ClassRows<T> a, typename CrossEntropyTerms<T, with_q>::State* states) {
  const PartWay way(a.shape);
  const auto s = way.template merge<CrossEntropyTerms<T, with_q>>(terms_of<T, with_q>(way, a));
  if (way.leads) states[blockIdx.x] = s;
}
/// The second one. A warp joins the parts of a row.
template <class T, bool with_q>
__global__ void __launch_bounds__(WarpWay::kThreads, WarpWay::kBlocks)
    cross_entropy_join(ClassRows<T> a, const typename CrossEntropyTerms<T, with_q>::State* states,
                       RowLosses<T> to) {
  const WarpWay way(a.shape);
  const int lane = static_cast<int>(threadIdx.x);
  const std::int64_t target = way.leads ? a.target_of(way.row) : 0;
  auto s = CrossEntropyTerms<T, with_q>::none();
  if (way.inside && lane < a.shape.parts) s = states[way.row * a.shape.parts + lane];
  s = CrossEntropyTerms<T, with_q>::template joined<RowThreads<32>>(s);
  if (way.leads) to.template write<with_q>(a, way.row, a.x + way.base, target, s);
}

struct RowGrad {
  const float* grad;
  bool each_row;
  const float* divisor;
  __device__ float of(std::int64_t row) const {
    const float g = grad[each_row ? row : 0];
    return divisor ? g / *divisor : g;
  }
};

struct SumOfQ {
  using State = float;
  __device__ static State merge(State a, State b) { return a + b; }
  template <class Row>
  __device__ static State joined(State s) {
    float sum[1] = {s};
    Row::sum(sum);
    return sum[0];
  }
};
/// That of a row, or of its part; every thread that shares it gets it.
template <class Way, class T>
__device__ __forceinline__ float sum_of_q(const Way& way, const ClassRows<T>& a) {
  float sum = 0;
  if (way.inside)
    way.template walk<4>(a.shape, a.x + way.base, [&](const auto& batch) {
      constexpr int N = std::remove_cvref_t<decltype(batch)>::kSize;
      float q[N];
      a.read_q(batch, way.base, q);
      UNROLL for (int j = 0; j < N; ++j) sum += q[j];
    });
  return way.template merge<SumOfQ>(sum);
}

/// For PartWay, whose blocks must know all of their row: sums (rows, parts).
template <class T>
__global__ void __launch_bounds__(PartWay::kThreads, PartWay::kBlocks)
    cross_entropy_q_parts(ClassRows<T> a, float* sums) {
  const PartWay way(a.shape);
  const float sum = sum_of_q(way, a);
  if (way.leads) sums[blockIdx.x] = sum;
}

/// q_sums: of parts, where there are any.
template <class Way, class T, bool with_q>
__global__ void __launch_bounds__(Way::kThreads, blocks_an_sm<Way>(with_q))
    cross_entropy_backward_rows(ClassRows<T> a, RowGrad g, const float* q_sums, T* dx) {
  const Way way(a.shape);
  const T* const x = a.x + way.base;
  T* const out = dx + way.base;
  float sum = 0;
  if constexpr (with_q && std::is_same_v<Way, PartWay>) {
    const int lane = static_cast<int>(threadIdx.x) % 32;  // a warp for itself: kMostParts
    if (lane < a.shape.parts) sum = q_sums[way.row * a.shape.parts + lane];
    sum = SumOfQ::joined<RowThreads<32>>(sum);
  } else if constexpr (with_q) {
    sum = sum_of_q(way, a);
  }
  if (!way.inside) return;
  // On their way with the target.
  const float grad = g.of(way.row), max = a.stats[2 * way.row], log_sum = a.stats[2 * way.row + 1];
  int hit_class = -1;
  float hit = 0;
  if (a.target) {
    const std::int64_t target = a.target[way.row];
    if (target == a.ignore_index || !a.is_class(target))
      return way.template walk<16>(a.shape, x, [&](const auto& batch) {
        const float zeros[std::remove_cvref_t<decltype(batch)>::kSize] = {};
        batch.write(out, zeros);
      });
    hit = a.rest * a.weight_of(target);
    hit_class = static_cast<int>(target);
  }
  const float scale = grad * (hit + sum);
  way.template walk<with_q ? 4 : 16>(a.shape, x, [&](const auto& batch) {
    constexpr int N = std::remove_cvref_t<decltype(batch)>::kSize;
    float values[N];
    [[maybe_unused]] float q[N] = {};
    batch.read(x, values, 0.0f);
    if constexpr (with_q) a.read_q(batch, way.base, q);
    UNROLL for (int j = 0; j < N; ++j) {
      values[j] = scale * exp_for<T>((values[j] - max) - log_sum);
      if constexpr (with_q) values[j] -= grad * q[j];
      if (batch.class_of(j) == hit_class) values[j] -= grad * hit;
    }
    batch.write(out, values);
  });
}

template <class Way, class T>
__global__ void __launch_bounds__(Way::kThreads, Way::kBlocks)
    cross_entropy_target_backward_rows(ClassRows<T> a, RowGrad g, T* dtarget) {
  const Way way(a.shape);
  if (!way.inside) return;
  const T* const x = a.x + way.base;
  const float grad = g.of(way.row) * a.rest, max = a.stats[2 * way.row], log_sum = a.stats[2 * way.row + 1];
  way.template walk<16>(a.shape, x, [&](const auto& batch) {
    constexpr int N = std::remove_cvref_t<decltype(batch)>::kSize;
    float values[N];
    batch.read(x, values, 0.0f);
    UNROLL for (int j = 0; j < N; ++j) if (batch.has(j)) values[j] =
        grad * a.weight_of(batch.class_of(j)) * (log_sum - (values[j] - max));
    batch.write(dtarget + way.base, values);
  });
}

inline constexpr int kNllThreads = 128;

template <class T>
__global__ void __launch_bounds__(kNllThreads)
    nll_rows(ClassRows<T> a, float* losses, float* weights, std::int64_t* first_bad) {
  const std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * kNllThreads + threadIdx.x;
  if (row >= a.shape.rows) return;
  const std::int64_t target = a.target[row];
  float loss = 0, weight = 0;
  if (target != a.ignore_index) {
    if (a.is_class(target)) {
      const std::int64_t outer = row / a.shape.inner, i = row - outer * a.shape.inner;
      weight = a.weight_of(target);
      loss = -weight * load(a.x[(outer * a.shape.n + target) * a.shape.inner + i]);
    } else {
      atomicMin(reinterpret_cast<unsigned long long*>(first_bad), static_cast<unsigned long long>(row));
    }
  }
  losses[row] = loss;
  weights[row] = weight;
}

template <class Way, class T>
__global__ void __launch_bounds__(Way::kThreads, Way::kBlocks)
    nll_backward_rows(ClassRows<T> a, RowGrad g, T* dx) {
  const Way way(a.shape);
  if (!way.inside) return;
  const std::int64_t target = a.target[way.row];
  const bool good = target != a.ignore_index && a.is_class(target);
  const float hit = good ? -a.weight_of(target) * g.of(way.row) : 0.0f;
  T* const out = dx + way.base;
  way.template walk<16>(a.shape, out, [&](const auto& batch) {
    constexpr int N = std::remove_cvref_t<decltype(batch)>::kSize;
    float values[N];
    UNROLL for (int j = 0; j < N; ++j) values[j] = good && batch.class_of(j) == target ? hit : 0.0f;
    batch.write(out, values);
  });
}

// ---- launches

template <class T>
ClassRows<T> class_rows(const char* op, const ClassLoss& a) {
  constexpr std::int64_t kMost = std::int64_t{1} << 30;
  check(a.classes <= kMost, "[", op, "] ", a.classes, " classes on a GPU; there may be ", kMost);
  return {.shape = {.rows = a.outer * a.inner,
                    .inner = a.inner,
                    .tiles = (a.inner + 31) / 32,
                    .n = static_cast<int>(a.classes)},
          .x = static_cast<const T*>(a.x),
          .probabilities = a.target ? nullptr : static_cast<const T*>(a.probabilities),
          .target = a.target,
          .weight = static_cast<const float*>(a.weight),
          .stats = static_cast<float*>(a.stats),
          .ignore_index = a.ignore_index,
          .rest = static_cast<float>(1 - a.smoothing),
          .each = static_cast<float>(a.smoothing / static_cast<double>(a.classes))};
}

inline bool needs_q(const ClassLoss& a) { return !a.target || a.smoothing != 0; }
inline RowGrad row_grad(const LossGrad& g) {
  return {static_cast<const float*>(g.grad), g.each_row, static_cast<const float*>(g.divisor)};
}

template <class T>
void launch_cross_entropy(const ClassLoss& a, void* losses, void* weights, std::int64_t* first_bad,
                          cudaStream_t stream) {
  ClassRows<T> rows = class_rows<T>("cross_entropy", a);
  const RowLosses<T> to{static_cast<float*>(losses), static_cast<float*>(weights), first_bad};
  const auto go = [&]<bool with_q>() {
    with_way<T>(rows.shape, {a.x, rows.probabilities}, [&]<class Way>(unsigned grid, dim3 block) {
      if constexpr (std::is_same_v<Way, PartWay>) {
        const Scratch<typename CrossEntropyTerms<T, with_q>::State> states(kernel_device, grid);
        launch(&cross_entropy_parts<T, with_q>, grid, block, 0, stream, rows, states.data());
        launch(&cross_entropy_join<T, with_q>, static_cast<unsigned>((rows.shape.rows + 3) / 4), {32, 4}, 0,
               stream, rows, states.data(), to);
      } else {
        launch(&cross_entropy_rows<Way, T, with_q>, grid, block, 0, stream, rows, to);
      }
    });
  };
  if (needs_q(a)) go.template operator()<true>();
  else go.template operator()<false>();
}

template <class T>
void launch_cross_entropy_backward(const ClassLoss& a, const LossGrad& g, void* dx, cudaStream_t stream) {
  ClassRows<T> rows = class_rows<T>("cross_entropy_backward", a);
  const auto go = [&]<bool with_q>() {
    with_way<T>(rows.shape, {a.x, rows.probabilities, dx}, [&]<class Way>(unsigned grid, dim3 block) {
      constexpr bool by_parts = with_q && std::is_same_v<Way, PartWay>;
      const Scratch<float> q_sums(kernel_device, by_parts ? grid : 0);
      if constexpr (by_parts) launch(&cross_entropy_q_parts<T>, grid, block, 0, stream, rows, q_sums.data());
      launch(&cross_entropy_backward_rows<Way, T, with_q>, grid, block, 0, stream, rows, row_grad(g),
             q_sums.data(), static_cast<T*>(dx));
    });
  };
  if (needs_q(a)) go.template operator()<true>();
  else go.template operator()<false>();
}

template <class T>
void launch_cross_entropy_target_backward(const ClassLoss& a, const LossGrad& g, void* dtarget,
                                          cudaStream_t stream) {
  ClassRows<T> rows = class_rows<T>("cross_entropy_target_backward", a);
  with_way<T>(rows.shape, {a.x, dtarget}, [&]<class Way>(unsigned grid, dim3 block) {
    launch(&cross_entropy_target_backward_rows<Way, T>, grid, block, 0, stream, rows, row_grad(g),
           static_cast<T*>(dtarget));
  });
}

template <class T>
void launch_nll_loss(const ClassLoss& a, void* losses, void* weights, std::int64_t* first_bad,
                     cudaStream_t stream) {
  const ClassRows<T> rows = class_rows<T>("nll_loss", a);
  if (rows.shape.rows == 0) return;
  launch(&nll_rows<T>, static_cast<unsigned>((rows.shape.rows + kNllThreads - 1) / kNllThreads), kNllThreads,
         0, stream, rows, static_cast<float*>(losses), static_cast<float*>(weights), first_bad);
}

template <class T>
void launch_nll_loss_backward(const ClassLoss& a, const LossGrad& g, void* dx, cudaStream_t stream) {
  ClassRows<T> rows = class_rows<T>("nll_loss_backward", a);
  with_way<T>(rows.shape, {dx}, [&]<class Way>(unsigned grid, dim3 block) {
    launch(&nll_backward_rows<Way, T>, grid, block, 0, stream, rows, row_grad(g), static_cast<T*>(dx));
  });
}

/// See launch_sums().
struct WeightedMean {
  static constexpr int kSums = 2, kPack = 4;
  const float *losses, *weights;
  float *mean, *total;

  template <int V>
  __device__ void add(std::int64_t i, float (&sums)[2]) const {
    const auto loss = *reinterpret_cast<const Pack<float, V>*>(losses + i),
               weight = *reinterpret_cast<const Pack<float, V>*>(weights + i);
    UNROLL for (int j = 0; j < V; ++j) {
      sums[0] += loss.v[j];
      sums[1] += weight.v[j];
    }
  }
  __device__ void finish(const double (&sums)[2]) const {
    *total = static_cast<float>(sums[1]);
    *mean = static_cast<float>(sums[0] / sums[1]);
  }
};
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
    UNROLL for (int j = 0; j < V; ++j) {
      const float d = load(a.v[j]) - load(b.v[j]);
      sums[0] += d * d;
    }
  }
  __device__ void finish(const double (&sums)[1]) const {
    *out = store<T>(static_cast<float>(sums[0] / divisor));
  }
};

template <class = void>
void launch_weighted_mean(std::int64_t n, const void* losses, const void* weights, void* mean, void* total,
                          cudaStream_t stream) {
  const WeightedMean f{static_cast<const float*>(losses), static_cast<const float*>(weights),
                       static_cast<float*>(mean), static_cast<float*>(total)};
  launch_sums(n, aligned<float, 4>(losses) && aligned<float, 4>(weights), f, stream);
}
template <class T>
void launch_sum_squared_error(std::int64_t n, const void* x, const void* t, void* out, double divisor,
                              cudaStream_t stream) {
  using F = SumSquaredError<T>;
  const F f{static_cast<const T*>(x), static_cast<const T*>(t), static_cast<T*>(out), divisor};
  launch_sums(n, aligned<T, F::kPack>(x) && aligned<T, F::kPack>(t), f, stream);
}

struct SquaredError {
  __device__ float operator()(float x, float t) const { return (x - t) * (x - t); }
};
struct SquaredErrorBackward {
  float scale;
  __device__ float operator()(float x, float t, float g) const { return scale * (x - t) * g; }
};
template <class T>
void launch_squared_error(const Elementwise<3>& e, cudaStream_t stream) {
  map<T, T, T>(e, SquaredError{}, stream);
}
template <class T>
void launch_squared_error_backward(const Elementwise<4>& e, double scale, cudaStream_t stream) {
  map<T, T, T, T>(e, SquaredErrorBackward{static_cast<float>(scale)}, stream);
}

}  // namespace tapestry::kernels::cuda
