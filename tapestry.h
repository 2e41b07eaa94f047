#pragma once
// Everything a program that builds and trains a model needs. Those who add operations or kernels include
// kernels/slot.h, core/parallel.h and their like by name.
#include "tapestry/autograd/engine.h"
#include "tapestry/autograd/function.h"
#include "tapestry/autograd/gradcheck.h"
#include "tapestry/autograd/ops.h"
#include "tapestry/core/allocator.h"
#include "tapestry/core/generator.h"
#include "tapestry/core/tensor.h"
#include "tapestry/core/threads.h"
#include "tapestry/core/version.h"
#include "tapestry/nn/nn.h"
