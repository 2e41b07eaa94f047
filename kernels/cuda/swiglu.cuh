#pragma once
// GPU kernels of the gates of SwiGLU and GLU, and of their gradients, for f32 and bf16.
#include "tapestry/kernels/cuda/pointwise.cuh"
#include "tapestry/kernels/ops/swiglu.h"
