#pragma once
// All pointwise operations, with NumPy's broadcasting and PyTorch's type promotion. f16 and bf16 are stored
// as such and computed in f32.
#include "tapestry/autograd/ops/arithmetic.h"
#include "tapestry/autograd/ops/compare.h"
#include "tapestry/autograd/ops/functions.h"
