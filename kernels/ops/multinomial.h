#pragma once
// Contracts of the kernels that sample categories. All arrays are dense. All devices compute the same bits,
// but the scores may differ in their last digits. kernels/multinomial.h has the formulas.
#include <cstdint>

#include "tapestry/core/generator.h"
#include "tapestry/kernels/slot.h"
#include "tapestry/kernels/view.h"

namespace tapestry::kernels {

/// Converts the weights p of each row to integers whose sum fits in 62 bits, so that sums do not depend on
/// the order of additions. p is (rows, n), finite and not negative. largest is (rows) and has the maxima of
/// the rows, which are positive. Both have the slot's dtype, f32 or f64. y is i64. Weights above 0 give at
/// least 1.
struct MultinomialWeightsArgs {
  std::int64_t rows, n;
  ConstArray p, largest;
  MutableArray y;
};
inline constinit Slot<MultinomialWeightsArgs> multinomial_weights{"multinomial_weights"};

/// Draws k categories per row with replacement. cumulative is (rows, n), i64, and has the cumulative sums of
/// the integer weights. out is (rows, k), i64. Element i of out uses the 64-bit number i of `range`.
struct MultinomialDrawArgs {
  std::int64_t rows, n, k;
  PhiloxRange range;
  ConstArray cumulative;
  MutableArray out;
};
inline constinit Slot<MultinomialDrawArgs> multinomial_draw{"multinomial_draw"};

/// Writes a score of type i64 for each of `count` weights p. The k categories with the smallest scores, in
/// ascending order, are k draws without replacement (Efraimidis and Spirakis 2006). A score is the bit
/// pattern of an exponential random number with rate p, in f64; such bit patterns are ordered as the numbers
/// are. Weight 0 gives infinity. p has the slot's dtype, f32 or f64. Element i uses the 64-bit number i of
/// `range`.
struct MultinomialScoresArgs {
  std::int64_t count;
  PhiloxRange range;
  ConstArray p;
  MutableArray y;
};
inline constinit Slot<MultinomialScoresArgs> multinomial_scores{"multinomial_scores"};

}  // namespace tapestry::kernels
