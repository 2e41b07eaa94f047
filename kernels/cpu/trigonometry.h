#pragma once
// sin, cos and tan. The f32 versions have no branches or calls, so that loops over them are vectorised. They
// hold for |x| <= kLargestAngle and are accurate to 2 ulp there; kernels/cpu/elementary.cpp calls the
// standard library for larger numbers. The f64 versions always call the standard library. The polynomials are
// those of Cephes (Moshier 1989).
#include <bit>
#include <cmath>
#include <cstdint>

namespace tapestry::kernels::cpu {

inline constexpr float kLargestAngle = 0x1p27f;

/// An angle x = (pi / 2) quadrant + r with r in [-pi / 4, pi / 4], sin(r) and cos(r).
struct ReducedAngle {
  float sin, cos;
  std::int32_t quadrant;
};
/// Reduces an angle in f64. The product of the quadrant, which has up to 27 bits, and the first 25 bits of
/// pi / 2 is exact, so r has an absolute error of 2^-52.
inline ReducedAngle reduced(float x) {
  constexpr double inverse = 0.63661977236758134308, shift = 0x1.8p52;  // 2 / pi; rounds to an integer
  constexpr double high = 0x1.921fb4p+0, low = 0x1.4442d18469899p-24;   // pi / 2
  const double wide = static_cast<double>(x), n = (wide * inverse + shift) - shift;
  const float r = static_cast<float>((wide - n * high) - n * low), z = r * r;
  float s = -1.9515295891e-4f;
  s = s * z + 8.3321608736e-3f;
  s = s * z - 1.6666654611e-1f;
  float c = 2.443315711809948e-5f;
  c = c * z - 1.388731625493765e-3f;
  c = c * z + 4.166664568298827e-2f;
  return {r + r * (z * s), 1 - (0.5f * z - z * z * c), static_cast<std::int32_t>(n)};
}
/// Changes the sign of y if bit 1 of `quadrant` is set.
inline float with_sign_of(std::int32_t quadrant, float y) {
  const std::uint32_t sign = (static_cast<std::uint32_t>(quadrant) & 2) << 30;
  return std::bit_cast<float>(std::bit_cast<std::uint32_t>(y) ^ sign);
}

inline double sin(double x) { return std::sin(x); }
inline float sin(float x) {
  const ReducedAngle a = reduced(x);
  const float y = with_sign_of(a.quadrant, a.quadrant & 1 ? a.cos : a.sin);
  return x == 0 ? x : y;  // keeps -0
}
inline double cos(double x) { return std::cos(x); }
inline float cos(float x) {
  const ReducedAngle a = reduced(x);
  return with_sign_of(a.quadrant + 1, a.quadrant & 1 ? a.sin : a.cos);
}
inline double tan(double x) { return std::tan(x); }
inline float tan(float x) {
  const ReducedAngle a = reduced(x);
  const bool odd = a.quadrant & 1;
  const float y = (odd ? -a.cos : a.sin) / (odd ? a.sin : a.cos);
  return x == 0 ? x : y;
}

}  // namespace tapestry::kernels::cpu
