#pragma once
// Losses that are composed of other operations, with PyTorch's definitions and defaults. autograd/ops/loss.h
// and autograd/ops/ctc.h have cross_entropy, nll_loss, mse_loss, the binary cross-entropies and ctc_loss.
//
// Unless a comment says otherwise, input and target have the same shape, and ValueError is thrown if they do
// not. With a reduction the result is 0-d. The mean of no elements is NaN.
#include "tapestry/autograd/ops/ctc.h"
#include "tapestry/autograd/ops/loss.h"

namespace tapestry::nn::functional {

using tapestry::BCELossParams;
using tapestry::BCEWithLogitsLossParams;
using tapestry::binary_cross_entropy;
using tapestry::binary_cross_entropy_with_logits;
using tapestry::ctc_loss;

/// |x - target|
Tensor l1_loss(const Tensor& x, const Tensor& target, Reduction reduction = Reduction::mean);

struct SmoothL1LossParams {
  Reduction reduction = Reduction::mean;
  double beta = 1;  ///< the difference at which the square ends; 0 gives l1_loss
};
/// With d = |x - target|: d^2 / (2 beta) where d < beta, else d - beta / 2. Throws ValueError if beta is
/// negative.
Tensor smooth_l1_loss(const Tensor& x, const Tensor& target, const SmoothL1LossParams& params = {});

struct HuberLossParams {
  Reduction reduction = Reduction::mean;
  double delta = 1;  ///< the difference at which the square ends
};
/// With d = |x - target|: d^2 / 2 where d < delta, else delta (d - delta / 2) (Huber, "Robust estimation of a
/// location parameter", 1964). Throws ValueError unless delta is positive.
Tensor huber_loss(const Tensor& x, const Tensor& target, const HuberLossParams& params = {});

/// `batchmean` divides the sum by the size of dimension 0. It is the definition of the divergence; `mean`
/// divides by the number of elements.
enum class KLDivReduction : std::uint8_t { none, mean, sum, batchmean };
struct KLDivLossParams {
  KLDivReduction reduction = KLDivReduction::mean;
  bool log_target = false;  ///< whether the target has log-probabilities
};
/// The Kullback-Leibler divergence target (log(target) - x) for log-probabilities x. It is 0 where the target
/// is 0. Shapes broadcast.
Tensor kl_div(const Tensor& x, const Tensor& target, const KLDivLossParams& params = {});

struct CosineEmbeddingLossParams {
  double margin = 0;
  Reduction reduction = Reduction::mean;
};
/// 1 - cos(a, b) where the target is 1, and max(0, cos(a, b) - margin) where it is -1. Shapes: a and b are
/// (N, D) and the target is (N), or a and b are (D) and the target is ().
Tensor cosine_embedding_loss(const Tensor& a, const Tensor& b, const Tensor& target,
                             const CosineEmbeddingLossParams& params = {});

struct TripletMarginLossParams {
  double margin = 1, p = 2, eps = 1e-6;
  bool swap = false;  ///< uses the distance of positive and negative if it is smaller than that of anchor and
                      ///< negative
  Reduction reduction = Reduction::mean;
};
/// max(0, d(anchor, positive) - d(anchor, negative) + margin), where d is the p-norm of the difference + eps
/// along the last dimension (Balntas et al., "Learning shallow convolutional feature descriptors with triplet
/// losses", 2016). Shapes: all (N, D) or all (D).
Tensor triplet_margin_loss(const Tensor& anchor, const Tensor& positive, const Tensor& negative,
                           const TripletMarginLossParams& params = {});

struct HingeEmbeddingLossParams {
  double margin = 1;
  Reduction reduction = Reduction::mean;
};
/// x where the target is 1, and max(0, margin - x) where it is -1.
Tensor hinge_embedding_loss(const Tensor& x, const Tensor& target,
                            const HingeEmbeddingLossParams& params = {});

struct MarginRankingLossParams {
  double margin = 0;
  Reduction reduction = Reduction::mean;
};
/// max(0, -target (a - b) + margin). The target is 1 if a should be larger than b, and -1 if it should be
/// smaller.
Tensor margin_ranking_loss(const Tensor& a, const Tensor& b, const Tensor& target,
                           const MarginRankingLossParams& params = {});

/// log(1 + exp(-target x)) for targets 1 and -1.
Tensor soft_margin_loss(const Tensor& x, const Tensor& target, Reduction reduction = Reduction::mean);

struct GaussianNLLLossParams {
  bool full = false;  ///< adds the constant log(2 pi) / 2
  double eps = 1e-6;  ///< variances are at least this; the gradient ignores the limit
  Reduction reduction = Reduction::mean;
};
/// (log(var) + (x - target)^2 / var) / 2 (Nix and Weigend, "Estimating the mean and variance of the target
/// probability distribution", 1994). `var` has the shape of x, or lacks the last dimension, or has size 1
/// there. Throws ValueError for another shape and, on a CPU, if a variance is negative.
Tensor gaussian_nll_loss(const Tensor& x, const Tensor& target, const Tensor& var,
                         const GaussianNLLLossParams& params = {});

struct PoissonNLLLossParams {
  bool log_input = true;  ///< whether x is the logarithm of the rate
  bool full = false;      ///< adds Stirling's approximation of log(target!) where the target is above 1
  double eps = 1e-8;      ///< is added to x before its logarithm if log_input is false
  Reduction reduction = Reduction::mean;
};
/// exp(x) - target x, or x - target log(x + eps) if log_input is false.
Tensor poisson_nll_loss(const Tensor& x, const Tensor& target, const PoissonNLLLossParams& params = {});

}  // namespace tapestry::nn::functional
