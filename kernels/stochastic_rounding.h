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

/// The seed of a parameter's random words. The constant keeps it apart from the seeds of generators, which
/// are small numbers as a rule.
TAPESTRY_HOST_DEVICE inline std::uint64_t rounding_seed(std::uint64_t parameter) {
  return 0x7e3a'91c5'0000'0000u + parameter;
}
/// The random words of elements [8 group, 8 group + 8) of a parameter in a step.
TAPESTRY_HOST_DEVICE inline Philox4 rounding_words(std::uint64_t parameter, std::uint64_t step,
                                                   std::uint64_t group) {
  return philox(rounding_seed(parameter), group, step);
}
/// The 16 random bits of an element. Selections instead of an index keep the words in registers.
TAPESTRY_HOST_DEVICE inline std::uint32_t rounding_bits(const Philox4& words, std::int64_t element) {
  const std::uint32_t low = element & 2 ? words.v[1] : words.v[0],
                      high = element & 2 ? words.v[3] : words.v[2];
  const std::uint32_t word = element & 4 ? high : low;
  return element & 1 ? word >> 16 : word & 0xffffu;
}

/// All bits of a word if the condition holds. With masks in place of conditions, g++ vectorises the loops.
TAPESTRY_HOST_DEVICE constexpr std::uint32_t mask_if(bool condition) {
  return 0u - static_cast<std::uint32_t>(condition);
}

/// Rounds x with 16 random bits. NaN and infinities stay. Values beyond the largest finite one may become
/// infinite. The mean is exact, except that it is up to 2^-16 of the distance between neighbours too large
/// for subnormal f16, whose distance from the lower neighbour has more than 16 bits.
template <class T>
TAPESTRY_HOST_DEVICE inline T round_stochastically(float x, std::uint32_t random) {
  const auto bits = std::bit_cast<std::uint32_t>(x);
  const auto magnitude = static_cast<std::int32_t>(bits & 0x7fffffffu);
  const std::uint32_t nan = mask_if(magnitude > 0x7f800000);
  if constexpr (std::is_same_v<T, BFloat16>) {
    // Infinities and NaN get no random bits. A NaN whose payload is in the low bits alone would become an
    // infinity when these are cut off, so a bit of the payload is set.
    const std::uint32_t special = mask_if(magnitude >= 0x7f800000);
    const std::uint32_t result = (bits + (random & ~special)) >> 16;
    return BFloat16::from_bits(static_cast<std::uint16_t>(result | (nan & 0x40u)));
  } else {
    static_assert(std::is_same_v<T, Half>);
    // A normal result drops 13 bits of the mantissa. Beyond the largest finite value it is infinite.
    const auto dropped = static_cast<std::int32_t>(
        (static_cast<std::uint32_t>(magnitude) - 0x38000000u + (random & 0x1fffu)) >> 13);
    const std::uint32_t too_large = mask_if(dropped >= 0x7c00);
    const std::uint32_t normal = (static_cast<std::uint32_t>(dropped) & ~too_large) | (0x7c00u & too_large);
    // The distance between subnormal neighbours is 2^-24, and the low bits of the result count them.
    const std::uint32_t is_subnormal = mask_if(magnitude < 0x38800000);
    const float count = std::bit_cast<float>(static_cast<std::uint32_t>(magnitude) & is_subnormal) * 0x1p24f;
    const auto lower = static_cast<std::int32_t>(count);
    const bool up =
        (count - static_cast<float>(lower)) * 0x1p16f > static_cast<float>(static_cast<std::int32_t>(random));
    const std::uint32_t subnormal = static_cast<std::uint32_t>(lower) + static_cast<std::uint32_t>(up);
    const std::uint32_t number = (subnormal & is_subnormal) | (normal & ~is_subnormal);
    const std::uint32_t result = (number & ~nan) | (0x7e00u & nan);
    return Half::from_bits(static_cast<std::uint16_t>((bits >> 16 & 0x8000u) | result));
  }
}

}  // namespace tapestry::kernels
