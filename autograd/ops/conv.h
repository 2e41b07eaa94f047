#pragma once
// Convolution.
#include <array>

#include "tapestry/core/tensor.h"

namespace tapestry {

/// A pair (vertical, horizontal). One number sets both.
struct Pair {
  std::int64_t h = 0, w = 0;
  constexpr Pair() = default;
  constexpr Pair(std::int64_t both) : h(both), w(both) {}  // NOLINT
  constexpr Pair(std::int64_t vertical, std::int64_t horizontal) : h(vertical), w(horizontal) {}
  friend constexpr bool operator==(Pair, Pair) = default;
};

struct Conv2dParams {
  Pair stride = 1, padding = 0, dilation = 1;
  std::int64_t groups = 1;
};

/// Computes the cross-correlation of x and weight. Shapes: x is (N, C, H, W), weight is (K, C / groups, R,
/// S), bias is (K) or undefined. The result is (N, K, P, Q) with P = (H + 2 padding - dilation (R - 1) - 1) /
/// stride + 1. Q is computed from W and S in the same way. If x or weight is channels-last, so is the
/// result. Throws ValueError if shapes, groups or window do not fit.
Tensor conv2d(const Tensor& x, const Tensor& weight, const Tensor& bias = {},
              const Conv2dParams& params = {});

}  // namespace tapestry
