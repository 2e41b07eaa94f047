#pragma once
// Rows of operations that autograd/ops/composite.cpp could also compute by several others. A row reads and
// writes each element once. Their gradients are computed by other operations.
#include "tapestry/kernels/ops/pointwise.h"

namespace tapestry::kernels {

/// The point between a and b at `weight`: a for 0, b for 1. As in PyTorch, it is computed from the nearer
/// end, so that both ends are exact.
struct Lerp : Pointwise<"lerp", 3, kFloats, 1> {
  template <class M, class C>
  TAPESTRY_FORMULA C value(C a, C b, C weight) {
    return weight < C(0.5) ? a + weight * (b - a) : b - (b - a) * (1 - weight);
  }
};
/// x + factor a b, or x + factor a / b if `divides` is not 0.
struct AddScaled : Pointwise<"add_scaled", 4, kFloats, 2> {
  template <class M, class C>
  TAPESTRY_FORMULA C value(C x, C a, C b, C factor, C divides) {
    return divides != 0 ? x + factor * a / b : x + factor * a * b;
  }
};

using Composites = RowList<Lerp, AddScaled>;

}  // namespace tapestry::kernels
