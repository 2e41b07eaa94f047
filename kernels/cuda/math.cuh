#pragma once
// The elementary functions that formulas call (kernels/ops/pointwise.h), for results of type T. They are
// computed in f32.
//
// While memory moves one input and one output of f32, a multiprocessor has time for about 55 instructions per
// element; for bf16 it has time for 27. So functions for bf16 are only as accurate as bf16 results can show.
#include <cmath>
#include <type_traits>

#include "tapestry/kernels/cuda/portable.cuh"

namespace tapestry::kernels::cuda {

template <class T = float>
struct Math {
  __device__ __forceinline__ static float exp(float x) { return expf(x); }
  /// e^x for x <= 0. For bf16, a subnormal result may be 0.
  __device__ __forceinline__ static float exp_of_negative(float x) { return exp_for<T>(x); }
  __device__ __forceinline__ static float log(float x) { return logf(x); }
  __device__ __forceinline__ static float log1p(float x) { return log1pf(x); }
  __device__ __forceinline__ static float exact_log(float x) { return logf(x); }
  __device__ __forceinline__ static float sqrt(float x) { return sqrtf(x); }
  __device__ __forceinline__ static float rsqrt(float x) { return rsqrtf(x); }
  __device__ __forceinline__ static float tanh(float x) { return tanhf(x); }
  __device__ __forceinline__ static float atan2(float y, float x) { return atan2f(y, x); }
  __device__ __forceinline__ static float pow(float x, float y) { return powf(x, y); }
  __device__ __forceinline__ static float abs(float x) { return fabsf(x); }

  /// 1 / (1 + e^-x), computed with an exponential that cannot overflow.
  __device__ __forceinline__ static float sigmoid(float x) {
    const float e = expf(-fabsf(x));  // exact where it is subnormal too: silu multiplies it by x
    return quotient_for<T>(x >= 0 ? 1 : e, 1 + e);
  }
  /// Phi(x), the normal distribution function, in half of the time of erfcf(). The left tail keeps its
  /// digits: for z >= 0, Phi(-z) is exp(-z^2 / 2) t p(t) with t = 1 / (1 + c z). The polynomial p has an
  /// error within 2e-8 (f32) or 1e-4 (bf16).
  __device__ __forceinline__ static float normal_cdf(float x) {
    constexpr bool few = std::is_same_v<T, BFloat16>;
    const float z = fabsf(x), t = __fdividef(1.0f, 1.0f + (few ? 0.4f : 0.3f) * z);
    float p;
    if constexpr (few) {
      p = -0.0847596229f;
      p = p * t + 0.144047848f;
      p = p * t + 0.120581500f;
      p = p * t + 0.160509868f;
      p = p * t + 0.159572667f;
    } else {
      p = -0.0107649836f;
      p = p * t + 0.0388268026f;
      p = p * t - 0.0302468046f;
      p = p * t - 0.0329057738f;
      p = p * t + 0.0235445066f;
      p = p * t + 0.0155171965f;
      p = p * t + 0.0607371635f;
      p = p * t + 0.0869907409f;
      p = p * t + 0.108936405f;
      p = p * t + 0.119682049f;
      p = p * t + 0.119682687f;
    }
    const float tail = exp_for<T>(-0.5f * (z * z)) * (p * t);
    return x < 0 ? tail : 1 - tail;
  }
};

}  // namespace tapestry::kernels::cuda
