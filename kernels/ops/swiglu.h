#pragma once
// The gate of SwiGLU (Shazeer 2020) as one row. Computed by two operations, it would read and write the
// hidden features of a transformer's feed-forward network twice as often, and keep silu(gate) for backward.
#include "tapestry/kernels/ops/pointwise.h"

namespace tapestry::kernels {

/// silu(gate) up, where silu(x) = x sigmoid(x).
struct Swiglu : Binary<"swiglu", Takes::floats> {
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

using SwigluRows = RowList<Swiglu>;

}  // namespace tapestry::kernels
