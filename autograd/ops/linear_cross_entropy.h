#pragma once
// The loss of a language model's output layer, without the whole matrix of logits.
#include "tapestry/autograd/ops/loss.h"

namespace tapestry {

struct LinearCrossEntropyParams {
  Tensor bias = {};                       ///< (V) or undefined
  std::int64_t ignore_index = -100;       ///< rows with this target are ignored
  Reduction reduction = Reduction::mean;  ///< mean or sum
  double label_smoothing = 0;             ///< in [0, 1]
  std::int64_t chunk_rows =
      0;  ///< rows whose logits exist at the same time; 0 takes about four million logits
};

/// Computes cross_entropy(linear(x, weight, bias), target) in chunks of rows: logits of 49,152 words for
/// 1,024 tokens would take 200 MB three times over. Shapes: x (..., E), weight (V, E), target (...) of
/// integers in [0, V); the result is 0-d. If a gradient is needed, the forward pass computes it too, because
/// the logits are there then (Hsu et al. 2024, "Liger Kernel"), and backward multiplies it by the incoming
/// gradient. Gradients of 16-bit weights are summed in f32. Throws ValueError if the shapes do not fit or the
/// reduction is none, TypeError for dtypes that differ, and IndexError for a target outside [0, V) that is
/// not ignore_index.
Tensor linear_cross_entropy(const Tensor& x, const Tensor& weight, const Tensor& target,
                            const LinearCrossEntropyParams& params = {});

}  // namespace tapestry
