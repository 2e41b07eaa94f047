#pragma once
// Contract of rotary position embeddings (Su et al. 2021).
#include <array>
#include <cstdint>

#include "tapestry/kernels/slot.h"
#include "tapestry/kernels/view.h"

namespace tapestry::kernels {

/// Rotates pair i of the features of each row by the angle whose cosine and sine are given for the row's
/// position: (a, b) becomes (a cos - b sin, a sin + b cos), or with `inverse` (a cos + b sin, b cos - a sin).
/// Pair i is (x[i], x[i + pairs]), or (x[2 i], x[2 i + 1]) if `interleaved`. Features from 2 pairs on are
/// copied.
///   Shapes: x and y are (batch, heads, length, width), cos and sin are (length, pairs), or (batch, length,
///   pairs) with table_stride = length pairs.
///   Layout: x and y have the strides given, in elements, and adjacent features. cos and sin are dense.
///   Dtypes: x and y have the slot's dtype, which is floating, cos and sin the accumulation dtype.
///   Accumulation: f32, or f64 for f64.
struct RopeArgs {
  std::int64_t batch = 0, heads = 0, length = 0, width = 0, pairs = 0;
  std::array<std::int64_t, 3> x_strides{}, y_strides{};  ///< of batch, heads and length
  std::int64_t table_stride = 0;                         ///< between batches of cos and sin; 0 if they share
  bool interleaved = false, inverse = false;
  ConstArray x, cos, sin;
  MutableArray y;
};
inline constinit Slot<RopeArgs> rope{"rope"};

}  // namespace tapestry::kernels
