#pragma once
// The formulas of the kernels that sample categories, for host and device code.
#include <bit>
#include <cmath>

#include "tapestry/core/generator.h"
#include "tapestry/kernels/random.h"
#include "tapestry/kernels/search.h"

namespace tapestry::kernels {

/// The scale of integer weights in rows of n elements: the largest weight of a row becomes 2^scale.
inline int weight_scale(std::int64_t n) {
  return 61 - static_cast<int>(std::bit_width(static_cast<std::uint64_t>(n)));
}

/// The integer weight of `p`. `unit` is 2^scale.
TAPESTRY_HOST_DEVICE inline std::int64_t integer_weight(double p, double largest, double unit) {
  return static_cast<std::int64_t>(::ceil(p / largest * unit));
}

/// The 64-bit random number `i` of a range.
TAPESTRY_HOST_DEVICE inline std::uint64_t random_word(PhiloxRange range, std::int64_t i) {
  const Philox4 four = philox(range.seed, range.offset + static_cast<std::uint64_t>(i / 2));
  return wide_word(four.v, static_cast<int>(i % 2));
}

/// The first category whose cumulative weight is above a uniform random number in [0, total).
TAPESTRY_HOST_DEVICE inline std::int64_t draw_category(const std::int64_t* cumulative, std::int64_t n,
                                                       std::uint64_t random) {
  const std::int64_t at = integer_from(random, 0, static_cast<std::uint64_t>(cumulative[n - 1]));
  return position_in(cumulative, nullptr, n, at, true);
}

/// The score of weight p: an exponential random number with rate p.
TAPESTRY_HOST_DEVICE inline std::int64_t category_score(double p, std::uint64_t random) {
  const double u = static_cast<double>(random >> 11) * 0x1p-53;  // in [0, 1)
  return std::bit_cast<std::int64_t>(p > 0 ? -::log1p(-u) / p : HUGE_VAL);
}

}  // namespace tapestry::kernels
