#pragma once
// torch.nn.functional: the functions that the layers compute, in one namespace.
//
//   namespace F = tapestry::nn::functional;
//   y = F::max_pool2d(F::relu(conv(x)), {.kernel_size = 2});
//
// The headers in autograd/ops and nn/losses.h document them.
#include "tapestry/autograd/ops/attention.h"
#include "tapestry/autograd/ops/conv.h"
#include "tapestry/autograd/ops/dropout.h"
#include "tapestry/autograd/ops/elementwise.h"
#include "tapestry/autograd/ops/embedding.h"
#include "tapestry/autograd/ops/loss.h"
#include "tapestry/autograd/ops/matmul.h"
#include "tapestry/autograd/ops/norm.h"
#include "tapestry/autograd/ops/pool.h"
#include "tapestry/autograd/ops/softmax.h"
#include "tapestry/nn/losses.h"

namespace tapestry::nn::functional {

using tapestry::adaptive_avg_pool2d;
using tapestry::avg_pool2d;
using tapestry::batch_norm;
using tapestry::conv2d;
using tapestry::cross_entropy;
using tapestry::dropout;
using tapestry::embedding;
using tapestry::layer_norm;
using tapestry::linear;
using tapestry::log_softmax;
using tapestry::max_pool2d;
using tapestry::mse_loss;
using tapestry::nll_loss;
using tapestry::scaled_dot_product_attention;
using tapestry::softmax;
using namespace tapestry::functions;  // relu, gelu, silu, sigmoid, tanh and all others of one tensor

/// x where it is positive, else negative_slope x.
inline Tensor leaky_relu(const Tensor& x, double negative_slope = 0.01) {
  return where(x > 0, x, x * negative_slope);
}

}  // namespace tapestry::nn::functional
