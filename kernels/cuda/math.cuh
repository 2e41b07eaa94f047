#pragma once
// The elementary functions that formulas call (kernels/ops/pointwise.h), for results of type T. They are
// computed in f32.
//
// While memory moves one input and one output of f32, a multiprocessor has time for about 55 instructions per
// element; for bf16 it has time for 27. So functions for bf16 are only as accurate as bf16 results can show.
#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "tapestry/kernels/cuda/portable.cuh"

namespace tapestry::kernels::cuda {

/// An angle x = (pi / 2) quadrant + r with r in [-pi / 4, pi / 4].
struct ReducedAngle {
  float r;
  int quadrant;
};
/// The 32-bit word i of the binary fraction of 1 / (2 pi), or 0. Selections instead of an array keep it in
/// registers.
__device__ __forceinline__ std::uint32_t inverse_of_2_pi(int i) {
  return i == 0   ? 0x28be60dbu
         : i == 1 ? 0x9391054au
         : i == 2 ? 0x7f09d5f4u
         : i == 3 ? 0x7d4d3770u
         : i == 4 ? 0x36d8a566u
         : i == 5 ? 0x4f10e410u
                  : 0;
}
/// Reduces a finite angle above 2^16 by Payne's and Hanek's method (1983): multiplies the mantissa by those
/// bits of 2 / pi that give the last two bits of the quadrant and 62 bits of the fraction.
__device__ inline ReducedAngle reduced_large_angle(float x) {
  std::uint32_t bits;
  memcpy(&bits, &x, sizeof bits);
  const std::uint32_t m = (bits & 0x7fffffu) << 8 | 0x80000000u;
  const int e = static_cast<int>(bits >> 23 & 0xff) - 126, i = e >> 5, shift = e & 31;
  std::uint32_t high = inverse_of_2_pi(i - 1), middle = inverse_of_2_pi(i), low = inverse_of_2_pi(i + 1);
  if (shift) {
    high = high << shift | middle >> (32 - shift);
    middle = middle << shift | low >> (32 - shift);
    low = low << shift | inverse_of_2_pi(i + 2) >> (32 - shift);
  }
  std::uint64_t p = (std::uint64_t{m} * low >> 32) + std::uint64_t{m} * middle;
  p += std::uint64_t{m * high} << 32;
  int quadrant = static_cast<int>(p >> 62);
  std::int64_t fraction = static_cast<std::int64_t>(p & 0x3fffffffffffffffu);
  if (fraction >> 61) {
    fraction -= std::int64_t{1} << 62;
    ++quadrant;
  }
  const float r = static_cast<float>(static_cast<double>(fraction) * 0x1.921fb54442d18p-62);  // pi / 2
  return x < 0 ? ReducedAngle{-r, -quadrant} : ReducedAngle{r, quadrant};
}
/// Subtracts multiples of pi / 2, which is the sum of three constants. The fused multiply-adds are exact
/// enough up to 2^16.
__device__ __forceinline__ ReducedAngle reduced_angle(float x) {
  const float a = fabsf(x);
  if (a > 65536.0f) return a <= 3.40282347e38f ? reduced_large_angle(x) : ReducedAngle{x - x, 0};
  const float n = rintf(x * 0.636619747f);
  float r = fmaf(n, -1.57079601f, x);
  r = fmaf(n, -3.13916473e-07f, r);
  r = fmaf(n, -5.39030253e-15f, r);
  return {r, a <= 65536.0f ? static_cast<int>(n) : 0};
}
/// The polynomials of Cephes (Moshier 1989) for |r| <= pi / 4.
__device__ __forceinline__ float sin_of_small(float r) {
  const float z = r * r;
  return r + r * (z * ((-1.9515295891e-4f * z + 8.3321608736e-3f) * z - 1.6666654611e-1f));
}
__device__ __forceinline__ float cos_of_small(float r) {
  const float z = r * r;
  const float p = (2.443315711809948e-5f * z - 1.388731625493765e-3f) * z + 4.166664568298827e-2f;
  return 1 - (0.5f * z - z * z * p);
}

template <class T = float>
struct Math {
  __device__ __forceinline__ static float exp(float x) { return expf(x); }
  /// e^x for x <= 0. For bf16, a subnormal result may be 0.
  __device__ __forceinline__ static float exp_of_negative(float x) { return exp_for<T>(x); }
  __device__ __forceinline__ static float log(float x) { return logf(x); }
  __device__ __forceinline__ static float log1p(float x) { return log1pf(x); }
  __device__ __forceinline__ static float log1p_of_unit(float x) { return log1pf(x); }
  __device__ __forceinline__ static float exact_log(float x) { return logf(x); }
  __device__ __forceinline__ static float sqrt(float x) { return sqrtf(x); }
  __device__ __forceinline__ static float rsqrt(float x) { return rsqrtf(x); }
  __device__ __forceinline__ static float tanh(float x) { return tanhf(x); }
  __device__ __forceinline__ static float atan2(float y, float x) { return atan2f(y, x); }
  __device__ __forceinline__ static float pow(float x, float y) { return powf(x, y); }
  __device__ __forceinline__ static float abs(float x) { return fabsf(x); }
  __device__ __forceinline__ static float log2(float x) { return log2f(x); }
  __device__ __forceinline__ static float log10(float x) { return log10f(x); }
  __device__ __forceinline__ static float exp2(float x) { return exp2f(x); }
  __device__ __forceinline__ static float expm1(float x) { return expm1f(x); }
  // CUDA's sinf(), cosf() and tanf() keep the words of a large angle in local memory.
  __device__ __forceinline__ static float sin(float x) {
    const ReducedAngle a = reduced_angle(x);
    const float y = a.quadrant & 1 ? cos_of_small(a.r) : sin_of_small(a.r);
    return x == 0 ? x : a.quadrant & 2 ? -y : y;  // keeps -0
  }
  __device__ __forceinline__ static float cos(float x) {
    const ReducedAngle a = reduced_angle(x);
    const float y = a.quadrant & 1 ? sin_of_small(a.r) : cos_of_small(a.r);
    return (a.quadrant + 1) & 2 ? -y : y;
  }
  __device__ __forceinline__ static float tan(float x) {
    const ReducedAngle a = reduced_angle(x);
    const float s = sin_of_small(a.r), c = cos_of_small(a.r);
    return x == 0 ? x : a.quadrant & 1 ? -c / s : s / c;
  }
  __device__ __forceinline__ static float asin(float x) { return asinf(x); }
  __device__ __forceinline__ static float acos(float x) { return acosf(x); }
  __device__ __forceinline__ static float atan(float x) { return atanf(x); }
  __device__ __forceinline__ static float sinh(float x) { return sinhf(x); }
  __device__ __forceinline__ static float cosh(float x) { return coshf(x); }
  __device__ __forceinline__ static float asinh(float x) { return asinhf(x); }
  __device__ __forceinline__ static float acosh(float x) { return acoshf(x); }
  __device__ __forceinline__ static float atanh(float x) { return atanhf(x); }
  __device__ __forceinline__ static float erf(float x) { return erff(x); }
  __device__ __forceinline__ static float erfc(float x) { return erfcf(x); }
  __device__ __forceinline__ static float lgamma(float x) { return lgammaf(x); }
  __device__ __forceinline__ static float floor(float x) { return floorf(x); }
  __device__ __forceinline__ static float ceil(float x) { return ceilf(x); }
  __device__ __forceinline__ static float trunc(float x) { return truncf(x); }
  __device__ __forceinline__ static float round_to_even(float x) { return rintf(x); }
  __device__ __forceinline__ static float fmod(float x, float y) { return fmodf(x, y); }
  /// 1, -1, or 0, also for NaN.
  __device__ __forceinline__ static float sign(float x) { return x > 0 ? 1.0f : x < 0 ? -1.0f : 0.0f; }
  __device__ __forceinline__ static float copysign(float x, float sign) { return copysignf(x, sign); }

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
