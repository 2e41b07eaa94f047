#pragma once
// Includes all pointwise operations. They use NumPy's broadcasting and PyTorch's type promotion. f16 and bf16
// are computed in f32 and rounded.
#include "tapestry/autograd/ops/arithmetic.h"
#include "tapestry/autograd/ops/compare.h"
#include "tapestry/autograd/ops/composite.h"
#include "tapestry/autograd/ops/elementary.h"
#include "tapestry/autograd/ops/functions.h"
