#pragma once
// Elementary functions of one tensor of f32 or bf16. kernels/ops/elementary.h has the formulas.
#include "tapestry/kernels/cuda/pointwise.cuh"
#include "tapestry/kernels/ops/elementary.h"

namespace tapestry::kernels::cuda {

using ElementaryGradients = OwnGradients<Elementary>::type;

}  // namespace tapestry::kernels::cuda
