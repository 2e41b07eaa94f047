#pragma once
// GPU kernels of operations that could also be computed by several others, for f32 and bf16.
#include "tapestry/kernels/cuda/pointwise.cuh"
#include "tapestry/kernels/ops/composite.h"
