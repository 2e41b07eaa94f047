#pragma once
// Losses, with PyTorch's definitions.
#include "tapestry/core/tensor.h"

namespace tapestry {

enum class Reduction : std::uint8_t { none, mean, sum };

struct CrossEntropyParams {
  Tensor weight = {};  ///< class weights (C) or undefined; `mean` divides by their sum over the targets
  std::int64_t ignore_index = -100;  ///< rows with this target are ignored
  Reduction reduction = Reduction::mean;
  double label_smoothing = 0;  ///< in [0, 1]; cross_entropy only (Szegedy et al. 2016)
};

/// Computes the negative log likelihood. Shapes: log_probs is (C), (N, C) or (N, C, d1, ...), and the integer
/// targets are (), (N) or (N, d1, ...). The result is 0-d, or has the targets' shape with Reduction::none.
/// Throws IndexError for a target outside [0, C) that is not ignore_index.
Tensor nll_loss(const Tensor& log_probs, const Tensor& target, const CrossEntropyParams& params = {});
/// Computes nll_loss of log_softmax in one kernel. The shapes are those of nll_loss. If the target has the
/// dtype and shape of the logits, it gives class probabilities. Warns once if the logits are the result of
/// softmax().
Tensor cross_entropy(const Tensor& logits, const Tensor& target, const CrossEntropyParams& params = {});
/// Computes (x - target)^2. With a reduction the result is 0-d. Throws ValueError unless the shapes are
/// equal.
Tensor mse_loss(const Tensor& x, const Tensor& target, Reduction reduction = Reduction::mean);

struct BCELossParams {
  Tensor weight = {};  ///< a factor of each element's loss; broadcasts to the input
  Reduction reduction = Reduction::mean;
};
/// Computes -(target log(x) + (1 - target) log(1 - x)) for probabilities x. Logarithms are limited to -100.
/// Throws ValueError unless the shapes are equal, and if a value on a CPU is outside [0, 1]. On a GPU values
/// are not checked, because the host would have to wait.
Tensor binary_cross_entropy(const Tensor& x, const Tensor& target, const BCELossParams& params = {});

struct BCEWithLogitsLossParams {
  Tensor weight = {};  ///< a factor of each element's loss; broadcasts to the input
  Reduction reduction = Reduction::mean;
  Tensor pos_weight = {};  ///< a factor of the losses of positive targets; broadcasts to the input
};
/// Computes binary_cross_entropy of sigmoid(x), without loss of digits for large |x|. Throws ValueError
/// unless the shapes are equal.
Tensor binary_cross_entropy_with_logits(const Tensor& x, const Tensor& target,
                                        const BCEWithLogitsLossParams& params = {});

}  // namespace tapestry
