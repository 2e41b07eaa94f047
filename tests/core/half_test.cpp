#include "tapestry/core/half.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#include "tapestry/core/philox.h"
#include "tests/support/catch.h"

using namespace tapestry;

namespace {

// The number of exponent and mantissa bits of T. The functions below use them to compute the expected values
// in double.
template <class T>
struct Format;
template <>
struct Format<Half> {
  static constexpr int exponent = 5, mantissa = 10;
};
template <>
struct Format<BFloat16> {
  static constexpr int exponent = 8, mantissa = 7;
};

template <class T>
constexpr int kBias = (1 << (Format<T>::exponent - 1)) - 1;

template <class T>
double decoded(std::uint16_t bits) {
  constexpr int m = Format<T>::mantissa, top = (1 << Format<T>::exponent) - 1;
  const int e = (bits >> m) & top, fraction = bits & ((1 << m) - 1);
  const double sign = bits & 0x8000 ? -1 : 1;
  if (e == top) return fraction ? std::nan("") : sign * INFINITY;
  if (e == 0) return sign * std::ldexp(fraction, 1 - kBias<T> - m);
  return sign * std::ldexp((1 << m) + fraction, e - kBias<T> - m);
}

// The value of format T nearest to x, ties to even.
template <class T>
double rounded(double x) {
  if (x == 0 || !std::isfinite(x)) return x;
  constexpr int m = Format<T>::mantissa;
  const int e = std::max(std::ilogb(x), 1 - kBias<T>);
  const double unit = std::ldexp(1.0, e - m);
  const double r = std::nearbyint(x / unit) * unit;
  return std::abs(r) >= std::ldexp(1.0, kBias<T> + 1) ? std::copysign(INFINITY, x) : r;
}

bool same(double a, double b) {
  return (std::isnan(a) && std::isnan(b)) || (a == b && std::signbit(a) == std::signbit(b));
}

template <class T>
double converted(float x) {
  return static_cast<float>(T(x));
}

}  // namespace

TEMPLATE_TEST_CASE("16-bit floats: all bit patterns survive decoding and encoding", "", Half, BFloat16) {
  int bad_decode = 0, bad_encode = 0;
  for (std::uint32_t b = 0; b < 65536; ++b) {
    const auto bits = static_cast<std::uint16_t>(b);
    const auto value = static_cast<float>(TestType::from_bits(bits));
    bad_decode += !same(value, decoded<TestType>(bits));
    const TestType again(value);
    bad_encode += std::isnan(value) ? !std::isnan(static_cast<float>(again)) || (again.bits ^ bits) & 0x8000
                                    : again.bits != bits;
  }
  CHECK(bad_decode == 0);
  CHECK(bad_encode == 0);
}

TEMPLATE_TEST_CASE("16-bit floats: halfway cases and their neighbours round to nearest even", "", Half,
                   BFloat16) {
  int bad = 0, seen = 0;
  for (std::uint32_t b = 0; b < 0x7fff; ++b) {
    const double low = decoded<TestType>(static_cast<std::uint16_t>(b));
    double high = decoded<TestType>(static_cast<std::uint16_t>(b + 1));
    if (!std::isfinite(low)) break;
    if (std::isinf(high)) high = std::ldexp(1.0, kBias<TestType> + 1);
    const auto middle = static_cast<float>((low + high) / 2);  // exact: it needs one bit more than the format
    for (const float x : {middle, std::nextafter(middle, 0.0f), std::nextafter(middle, INFINITY)})
      for (const float y : {x, -x}) {
        bad += !same(converted<TestType>(y), rounded<TestType>(y));
        ++seen;
      }
  }
  CHECK(bad == 0);
  CHECK(seen > 6 * 30000);
}

TEMPLATE_TEST_CASE("16-bit floats: random floats round as in double", "", Half, BFloat16) {
  int bad = 0;
  for (std::uint64_t i = 0; i < 250000; ++i)
    for (const std::uint32_t bits : philox(1, i).v) {
      const auto x = std::bit_cast<float>(bits);                                // any exponent
      const auto y = std::bit_cast<float>((bits & 0x87ffffffu) + 0x34000000u);  // mostly in the range of f16
      for (const float f : {x, y}) {
        const double got = converted<TestType>(f);
        bad += std::isnan(f) ? !std::isnan(got) : !same(got, rounded<TestType>(f));
      }
    }
  CHECK(bad == 0);
}

TEST_CASE("16-bit floats: values at the limits round to infinity, zero or a subnormal as in IEEE 754") {
  CHECK(Half(65504.0f).bits == 0x7bff);
  CHECK(Half(std::nextafter(65520.0f, 0.0f)).bits == 0x7bff);
  CHECK(Half(65520.0f).bits == 0x7c00);
  CHECK(Half(-1e30f).bits == 0xfc00);
  CHECK(Half(-0.0f).bits == 0x8000);
  CHECK(Half(0x1p-25f).bits == 0);  // halfway between 0 and the smallest subnormal: rounds to even
  CHECK(Half(std::nextafter(0x1p-25f, 1.0f)).bits == 1);
  CHECK(BFloat16(std::numeric_limits<float>::max()).bits == 0x7f80);
  CHECK(BFloat16(std::numeric_limits<float>::denorm_min()).bits == 0);
  // A NaN whose payload is only in the lower 16 bits must not become an infinity.
  CHECK(std::isnan(static_cast<float>(BFloat16(std::bit_cast<float>(0x7f800001u)))));
  CHECK(std::isnan(static_cast<float>(Half(std::bit_cast<float>(0x7f800001u)))));
  static_assert(static_cast<float>(Half(1.5f)) == 1.5f && static_cast<float>(BFloat16(-2.0f)) == -2.0f);
}
