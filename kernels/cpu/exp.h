#pragma once
// exp without branches or calls, so that loops over it are vectorised.
#include <bit>
#include <cstdint>
#include <type_traits>

namespace tapestry::kernels::cpu {

/// Returns e^x with an error of at most 2 ulp, also for subnormal results. NaN, 0 and infinity appear for the
/// same arguments as in std::exp. Method: x = n ln2 + r with r in [-ln2/2, ln2/2], and e^x = 2^n e^r, where
/// e^r is a Taylor polynomial. The result is multiplied by 2^n as two factors, so that neither factor
/// overflows or underflows.
template <class T>
inline T fast_exp(T x) {
  constexpr bool f32 = std::is_same_v<T, float>;
  using Int = std::conditional_t<f32, std::int32_t, std::int64_t>;
  constexpr int mantissa = f32 ? 23 : 52, bias = f32 ? 127 : 1023;
  constexpr T low = f32 ? T(-104) : T(-746), high = f32 ? T(89) : T(710);
  // Adding `shift` to a number rounds the number to an integer. The low bits of the sum's mantissa are that
  // integer.
  constexpr T shift = f32 ? T(0x1.8p23) : T(0x1.8p52);
  constexpr T log2e = T(1.4426950408889634074);
  constexpr T ln2_high = f32 ? T(0x1.62e4p-1) : T(0x1.62e42fefa38p-1);
  constexpr T ln2_low = f32 ? T(0x1.7f7d1cf79abcap-20) : T(0x1.ef35793c7673p-45);

  x = x < low ? low : x;
  x = x > high ? high : x;
  const T t = x * log2e + shift;
  const T n = t - shift;
  const T r = (x - n * ln2_high) - n * ln2_low;
  T p;
  if constexpr (f32) {
    p = T(1.0 / 5040);
    p = p * r + T(1.0 / 720);
  } else {
    p = T(1.0 / 6227020800.0);
    p = p * r + T(1.0 / 479001600);
    p = p * r + T(1.0 / 39916800);
    p = p * r + T(1.0 / 3628800);
    p = p * r + T(1.0 / 362880);
    p = p * r + T(1.0 / 40320);
    p = p * r + T(1.0 / 5040);
    p = p * r + T(1.0 / 720);
  }
  p = p * r + T(1.0 / 120);
  p = p * r + T(1.0 / 24);
  p = p * r + T(1.0 / 6);
  p = p * r + T(0.5);
  p = p * r + T(1);
  p = p * r + T(1);
  const T h = n * T(0.5) + shift;
  const Int zero = std::bit_cast<Int>(shift);
  const Int all = std::bit_cast<Int>(t) - zero, half = std::bit_cast<Int>(h) - zero;
  using Bits = std::make_unsigned_t<Int>;
  const T first = std::bit_cast<T>(static_cast<Bits>(half + bias) << mantissa);
  const T second = std::bit_cast<T>(static_cast<Bits>(all - half + bias) << mantissa);
  return p * first * second;
}

}  // namespace tapestry::kernels::cpu
