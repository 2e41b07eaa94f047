#pragma once
// Losses, with PyTorch's definitions.
#include "tapestry/core/tensor.h"

namespace tapestry {

enum class Reduction : std::uint8_t { none, mean, sum };

struct CrossEntropyParams {
  Tensor weight = {};  ///< (C) class weights, or undefined; `mean` divides by the sum of weights used
  std::int64_t ignore_index = -100;  ///< targets with this value count nothing
  Reduction reduction = Reduction::mean;
  double label_smoothing = 0;  ///< in [0, 1]; cross_entropy only (Szegedy et al. 2016)
};

/// Negative log likelihood: log_probs (N, C) or (C) or (N, C, d1, ...), integer targets (N), () or (N, d1,
/// ...); 0-d, or of the targets' shape with Reduction::none. IndexError for a target outside [0, C) that is
/// not ignore_index.
Tensor nll_loss(const Tensor& log_probs, const Tensor& target, const CrossEntropyParams& params = {});
/// nll_loss of log_softmax, fused: logits of the same shapes. A target of logits' dtype and shape is taken as
/// class probabilities. Warns, once, if the logits are what softmax() returned.
Tensor cross_entropy(const Tensor& logits, const Tensor& target, const CrossEntropyParams& params = {});
/// (x - target)^2. The shapes must be equal (ValueError); with a reduction the result is 0-d.
Tensor mse_loss(const Tensor& x, const Tensor& target, Reduction reduction = Reduction::mean);

}  // namespace tapestry
