#pragma once
// The gates of GLU (Dauphin et al. 2017) and SwiGLU (Shazeer 2020) as one row each. Computed by two
// operations, a gate would read and write the hidden features of a network twice as often, and keep the
// sigmoid for backward.
#include "tapestry/kernels/ops/pointwise.h"

namespace tapestry::kernels {

/// silu(gate) up, where silu(x) = x sigmoid(x).
struct Swiglu : Binary<"swiglu", Takes::floats> {
  static constexpr bool kElementary = true;
  template <class M, class C>
  TAPESTRY_FORMULA C value(C gate, C up) {
    return gate * M::sigmoid(gate) * up;
  }
  template <class M, class C>
  TAPESTRY_FORMULA C gradient_a(C dy, C gate, C up) {
    const C s = M::sigmoid(gate);
    return dy * up * (s * (1 + gate * (1 - s)));
  }
  template <class M, class C>
  TAPESTRY_FORMULA C gradient_b(C dy, C gate, C) {
    return dy * (gate * M::sigmoid(gate));
  }
};

/// a sigmoid(b)
struct Glu : Binary<"glu", Takes::floats> {
  static constexpr bool kElementary = true;
  using GradientA = ValueOf<Glu, Of::dy, Of::b>;
  template <class M, class C>
  TAPESTRY_FORMULA C value(C a, C b) {
    return a * M::sigmoid(b);
  }
  template <class M, class C>
  TAPESTRY_FORMULA C gradient_b(C dy, C a, C b) {
    const C s = M::sigmoid(b);
    return dy * a * (s * (1 - s));
  }
};

using SwigluRows = RowList<Swiglu, Glu>;

}  // namespace tapestry::kernels
