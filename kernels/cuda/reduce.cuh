#pragma once
// Sums, and reductions based on sums: mean, variance, logsumexp, norms. A thread adds the elements of one
// batch of loads pairwise in their compute type, then adds the batch sums in f64. So the rounding error does
// not grow with the count.
#include <cmath>

#include "tapestry/kernels/cuda/reduce_max.cuh"
#include "tapestry/kernels/cuda/reduction.cuh"

namespace tapestry::kernels::cuda {

/// SumLane: type of the pairwise sums of a batch. SumTotal: type of the total. Integers wrap.
template <class T>
using SumLane = std::conditional_t<!std::is_integral_v<T>, float,
                                   std::conditional_t<sizeof(T) == 1, unsigned, std::uint64_t>>;
template <class T>
using SumTotal = std::conditional_t<std::is_integral_v<T>, std::uint64_t, double>;

/// Pairwise sum of N numbers.
template <int N, class L>
__device__ __forceinline__ L added(const L* y) {
  if constexpr (N == 1) return y[0];
  else return added<N / 2>(y) + added<N / 2>(y + N / 2);
}

/// Reduction op: the sum of Terms::term(x, center).
template <class T, class Terms>
struct SumOf : Terms {
  using State = SumTotal<T>;
  using Center = float;
  __device__ static State identity() { return 0; }
  template <int N, class Position>
  __device__ void take(State& s, const Compute<T> (&x)[N], float center, const Position&) const {
    static_assert((N & (N - 1)) == 0);
    SumLane<T> y[N];
#pragma unroll
    for (int j = 0; j < N; ++j) y[j] = this->term(x[j], center);
    s += static_cast<State>(added<N>(y));
  }
  __device__ static State merge(State a, State b) { return a + b; }
  __device__ static State of_lane(State s, int bits) { return __shfl_xor_sync(kAllLanes, s, bits); }
};

template <class T>
struct IntegerTerms {
  std::int64_t* out;
  __device__ float center(std::int64_t) const { return 0; }
  __device__ SumLane<T> term(T x, float) const { return static_cast<SumLane<T>>(x); }
  __device__ void finish(std::int64_t i, std::uint64_t sum) const { out[i] = static_cast<std::int64_t>(sum); }
};
/// The sum of x, or of (x - mean)^2, perhaps without NaN. The result is sum / divisor, or sqrt(sum).
template <class T>
struct PlainTerms {
  FloatResult<T> out;
  const float* mean;  // null means 0
  double divisor;
  bool square, root, skips_nan = false;
  __device__ float center(std::int64_t i) const { return mean ? mean[i] : 0; }
  __device__ float term(float x, float center) const {
    if (skips_nan && x != x) return 0;
    x -= center;
    return square ? x * x : x;
  }
  __device__ void finish(std::int64_t i, double sum) const { out.put(i, root ? sqrt(sum) : sum / divisor); }
};
/// The sum of exp(x - max) for logsumexp, or of |x|^p for norms. p = 0 counts the elements that are not 0.
template <class T>
struct PowerTerms {
  FloatResult<T> out;
  const float* max;  // null means that the terms are |x|^p
  float p;
  double inverse;  // 1 / p; 1 for p = 0
  /// An infinite maximum is not subtracted, because inf - inf is NaN. With a NaN maximum the sum is NaN in
  /// any case.
  __device__ float center(std::int64_t i) const { return max && max[i] - max[i] == 0 ? max[i] : 0; }
  __device__ float term(float x, float center) const {
    if (max) return expf(x - center);
    if (p == 1) return fabsf(x);
    if (p == 0) return x != 0 ? 1 : 0;
    return powf(fabsf(x), p);
  }
  __device__ void finish(std::int64_t i, double sum) const {
    out.put(i, max ? log(sum) + center(i) : inverse == 1 ? sum : pow(sum, inverse));
  }
};

/// T may be a float or integer type. Bools are bytes with value 0 or 1.
template <class T>
void launch_sum(const LaunchContext& context, const SumArgs& a) {
  const Reduction& r = a.reduction;
  if constexpr (std::is_integral_v<T>)
    launch_reduce<T>(r, SumOf<T, IntegerTerms<T>>{{r.out.as<std::int64_t>()}}, context);
  else
    launch_reduce<T>(r, SumOf<T, PlainTerms<T>>{{FloatResult<T>(r), nullptr, a.divisor, false, false}},
                     context);
}
template <class T>
void launch_nansum(const LaunchContext& context, const Reduction& r) {
  launch_reduce<T>(r, SumOf<T, PlainTerms<T>>{{FloatResult<T>(r), nullptr, 1, false, false, true}}, context);
}
template <class T>
void launch_variance(const LaunchContext& context, const VarianceArgs& a) {
  const Reduction& r = a.reduction;
  launch_reduce<T>(
      r, SumOf<T, PlainTerms<T>>{{FloatResult<T>(r), a.mean.as<float>(), a.divisor, true, false}}, context);
}
template <class T>
void launch_logsumexp(const LaunchContext& context, const LogsumexpArgs& a) {
  const Reduction& r = a.reduction;
  launch_reduce<T>(r, SumOf<T, PowerTerms<T>>{{FloatResult<T>(r), a.max.as<float>(), 0, 0}}, context);
}
template <class T>
void launch_norm(const LaunchContext& context, const NormArgs& a) {
  const Reduction& r = a.reduction;
  const double p = a.p;
  const FloatResult<T> out(r);
  if (std::isinf(p)) return launch_extreme<T>(r, p > 0, true, nullptr, context);
  if (p == 2) return launch_reduce<T>(r, SumOf<T, PlainTerms<T>>{{out, nullptr, 1, true, true}}, context);
  const double inverse = p == 0 ? 1 : 1 / p;
  launch_reduce<T>(r, SumOf<T, PowerTerms<T>>{{out, nullptr, static_cast<float>(p), inverse}}, context);
}

struct NormBackward {
  float p;
  __device__ float operator()(float x, float norm, float g) const {
    const float sign = x > 0 ? 1.0f : x < 0 ? -1.0f : x;  // NaN passes through
    if (p == 0) return 0;
    if (p == 1) return g * sign;
    if (p == 2) return norm == 0 ? 0 : g * (x / norm);
    if (p - p != 0) return fabsf(x) == norm || (x != x && norm != norm) ? g * sign : 0;  // p is infinite
    if (norm == 0 || (x == 0 && p < 1)) return 0;
    return g * sign * powf(fabsf(x) / norm, p - 1);
  }
};
template <class T>
void launch_norm_backward(const LaunchContext& context, const NormBackwardArgs& a) {
  map<T, T, T, T>(a.operands, NormBackward{static_cast<float>(a.p)}, stream_of(context));
}

}  // namespace tapestry::kernels::cuda
