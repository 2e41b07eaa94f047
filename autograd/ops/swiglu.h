#pragma once
#include "tapestry/core/tensor.h"

namespace tapestry {

/// Computes silu(gate) up, the gate of SwiGLU feed-forward networks (Shazeer 2020): down(swiglu(gate(x),
/// up(x))). It is one kernel, and backward keeps the two inputs only. The inputs broadcast and promote.
/// glu() has the sigmoid in place of silu, and takes both halves as one tensor. Throws TypeError unless both
/// dtypes are floating.
Tensor swiglu(const Tensor& gate, const Tensor& up);

}  // namespace tapestry
