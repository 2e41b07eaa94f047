#pragma once
// Stochastic rounding of f32 to bf16 and f16 (Gupta et al., "Deep learning with limited numerical precision",
// 2015). A value between two neighbours becomes the upper one with a probability that is its distance from
// the lower one in units of their distance, so the mean of many roundings is the value itself. Host and
// device code share these functions, so both give the same bits.
#include <bit>
#include <cstdint>
#include <type_traits>

#include "tapestry/core/half.h"
#include "tapestry/core/philox.h"

namespace tapestry::kernels {

/// Eight elements share the words of one call of Philox, 16 bits each.
inline constexpr int kRoundingGroup = 8;

/// The random words of elements [8 group, 8 group + 8) of a parameter in a step. The constant keeps the seeds
/// apart from those of generators, which are small numbers as a rule.
TAPESTRY_HOST_DEVICE inline Philox4 rounding_words(std::uint64_t parameter, std::uint64_t step,
                                                   std::uint64_t group) {
  return philox(0x7e3a'91c5'0000'0000u + parameter, group, step);
}
/// The 16 random bits of an element. Selections instead of an index keep the words in registers.
TAPESTRY_HOST_DEVICE inline std::uint32_t rounding_bits(const Philox4& words, std::int64_t element) {
  const std::uint32_t low = element & 2 ? words.v[1] : words.v[0],
                      high = element & 2 ? words.v[3] : words.v[2];
  const std::uint32_t word = element & 4 ? high : low;
  return element & 1 ? word >> 16 : word & 0xffffu;
}

/// Rounds x with 16 random bits. NaN and infinities stay. Values beyond the largest finite one may become
/// infinite. The mean is exact, except that it is up to 2^-16 of the distance between neighbours too large
/// for subnormal f16, whose distance from the lower neighbour has more than 16 bits.
template <class T>
TAPESTRY_HOST_DEVICE inline T round_stochastically(float x, std::uint32_t random) {
  const auto bits = std::bit_cast<std::uint32_t>(x);
  const std::uint32_t magnitude = bits & 0x7fffffffu;
  if constexpr (std::is_same_v<T, BFloat16>) {
    const std::uint32_t finite = (bits + random) >> 16;
    // Adding to a NaN could clear its mantissa. The bit keeps it a NaN.
    const std::uint32_t special = bits >> 16 | (magnitude > 0x7f800000u ? 0x40u : 0u);
    return BFloat16::from_bits(static_cast<std::uint16_t>(magnitude >= 0x7f800000u ? special : finite));
  } else {
    static_assert(std::is_same_v<T, Half>);
    // A normal result drops 13 bits of the mantissa. Beyond the largest finite value it is infinite.
    const std::uint32_t dropped = (magnitude - 0x38000000u + (random & 0x1fffu)) >> 13;
    const std::uint32_t normal = dropped < 0x7c00u ? dropped : 0x7c00u;
    // The distance between subnormal neighbours is 2^-24, and the low bits of the result count them.
    const bool is_subnormal = magnitude < 0x38800000u;
    const float count = std::bit_cast<float>(is_subnormal ? magnitude : 0u) * 0x1p24f;
    const auto lower = static_cast<std::int32_t>(count);
    const bool up = (count - static_cast<float>(lower)) * 0x1p16f > static_cast<float>(random);
    const std::uint32_t subnormal = static_cast<std::uint32_t>(lower) + (up ? 1u : 0u);
    const std::uint32_t finite = is_subnormal ? subnormal : normal;
    const std::uint32_t result = magnitude > 0x7f800000u ? 0x7e00u : finite;  // an infinity is beyond, too
    return Half::from_bits(static_cast<std::uint16_t>((bits >> 16 & 0x8000u) | result));
  }
}

}  // namespace tapestry::kernels
