#pragma once
// torch.nn.functional: the functions that the layers compute, in one namespace.
//
//   namespace F = tapestry::nn::functional;
//   y = F::max_pool2d(F::relu(conv(x)), {.kernel_size = 2});
//
// The headers in autograd/ops and nn/losses.h document them.
#include "tapestry/autograd/ops/attention.h"
#include "tapestry/autograd/ops/conv.h"
#include "tapestry/autograd/ops/distance.h"
#include "tapestry/autograd/ops/dropout.h"
#include "tapestry/autograd/ops/elementwise.h"
#include "tapestry/autograd/ops/embedding.h"
#include "tapestry/autograd/ops/embedding_bag.h"
#include "tapestry/autograd/ops/fold.h"
#include "tapestry/autograd/ops/grid_sample.h"
#include "tapestry/autograd/ops/index.h"
#include "tapestry/autograd/ops/loss.h"
#include "tapestry/autograd/ops/matmul.h"
#include "tapestry/autograd/ops/norm.h"
#include "tapestry/autograd/ops/pad.h"
#include "tapestry/autograd/ops/pool.h"
#include "tapestry/autograd/ops/resample.h"
#include "tapestry/autograd/ops/softmax.h"
#include "tapestry/nn/losses.h"

namespace tapestry::nn::functional {

using tapestry::adaptive_avg_pool1d;
using tapestry::adaptive_avg_pool2d;
using tapestry::adaptive_avg_pool3d;
using tapestry::adaptive_max_pool1d;
using tapestry::adaptive_max_pool1d_with_indices;
using tapestry::adaptive_max_pool2d;
using tapestry::adaptive_max_pool2d_with_indices;
using tapestry::adaptive_max_pool3d;
using tapestry::adaptive_max_pool3d_with_indices;
using tapestry::affine_grid;
using tapestry::avg_pool1d;
using tapestry::avg_pool2d;
using tapestry::avg_pool3d;
using tapestry::batch_norm;
using tapestry::conv1d;
using tapestry::conv2d;
using tapestry::conv3d;
using tapestry::conv_transpose1d;
using tapestry::conv_transpose2d;
using tapestry::conv_transpose3d;
using tapestry::cosine_similarity;
using tapestry::cross_entropy;
using tapestry::dropout;
using tapestry::dropout1d;
using tapestry::dropout2d;
using tapestry::embedding;
using tapestry::embedding_bag;
using tapestry::grid_sample;
using tapestry::group_norm;
using tapestry::instance_norm;
using tapestry::interpolate;
using tapestry::layer_norm;
using tapestry::linear;
using tapestry::log_softmax;
using tapestry::lp_pool1d;
using tapestry::lp_pool2d;
using tapestry::lp_pool3d;
using tapestry::max_pool1d;
using tapestry::max_pool1d_with_indices;
using tapestry::max_pool2d;
using tapestry::max_pool2d_with_indices;
using tapestry::max_pool3d;
using tapestry::max_pool3d_with_indices;
using tapestry::max_unpool1d;
using tapestry::max_unpool2d;
using tapestry::max_unpool3d;
using tapestry::mse_loss;
using tapestry::nll_loss;
using tapestry::normalize;
using tapestry::one_hot;
using tapestry::pad;
using tapestry::pairwise_distance;
using tapestry::pixel_shuffle;
using tapestry::pixel_unshuffle;
using tapestry::rms_norm;
using tapestry::scaled_dot_product_attention;
using tapestry::softmax;
using namespace tapestry::functions;  // relu, gelu, silu, sigmoid, tanh and all others of one tensor

/// im2col() and col2im() by the names that PyTorch gives them. tapestry::unfold is another function, the view
/// of the windows of one dimension.
inline Tensor unfold(const Tensor& x, const FoldParams& params) { return im2col(x, params); }
inline Tensor fold(const Tensor& x, Pair output_size, const FoldParams& params) {
  return col2im(x, output_size, params);
}

/// See nn::Bilinear. a is (..., in1), b (..., in2), weight (out, in1, in2), bias (out) or undefined. Returns
/// (..., out). Throws ValueError if the shapes do not fit.
Tensor bilinear(const Tensor& a, const Tensor& b, const Tensor& weight, const Tensor& bias = {});
/// Divides each element by a power of the mean square of its neighbours, which are `size` channels around it
/// (Krizhevsky, Sutskever and Hinton, "ImageNet classification with deep convolutional neural networks",
/// 2012): y_c = x_c (k + alpha / size * sum of x_j^2)^-beta for j from c - size / 2 to c + (size - 1) / 2.
/// Channels that do not exist count as 0. x is (N, C, ...) with at least 3 dimensions. Throws ValueError for
/// fewer dimensions, and unless size is positive.
Tensor local_response_norm(const Tensor& x, std::int64_t size, double alpha = 1e-4, double beta = 0.75,
                           double k = 1);
/// Adds Gumbel noise to the logits, divides by tau and takes the softmax along `dim`: a sample that is
/// differentiable (Jang, Gu and Poole, "Categorical reparameterization with Gumbel-softmax", 2017). If
/// `hard`, the result is one-hot, and its gradient is that of the soft sample. Throws ValueError unless tau >
/// 0, and TypeError for dtypes that are not floating.
Tensor gumbel_softmax(const Tensor& logits, double tau = 1, bool hard = false, std::int64_t dim = -1);
}  // namespace tapestry::nn::functional
