#pragma once
// GPU kernels of SwiGLU's gate and of its gradients, for f32 and bf16.
#include "tapestry/kernels/cuda/pointwise.cuh"
#include "tapestry/kernels/ops/swiglu.h"
