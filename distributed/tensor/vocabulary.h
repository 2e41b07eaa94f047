#pragma once
// Embedding and loss of a vocabulary that the ranks of an axis divide: rank r has the rows
// nn::Region::part(0, r, ranks) of the weight. The sizes need not divide: the last ranks have fewer rows.
#include <cstdint>
#include <memory>
#include <optional>

#include "tapestry/autograd/ops/loss.h"
#include "tapestry/distributed/mesh/mesh.h"
#include "tapestry/distributed/placement/convert.h"

namespace tapestry::distributed {

/// embedding(weight, indices, padding_idx) of the whole weight (V, D), of which `weight` has this rank's
/// rows. The result (..., D) is placed as partial along the axis: the sum over the ranks is the embedding.
/// Throws IndexError for an index outside [0, V). Indices and padding_idx count the rows of the whole weight.
Tensor vocab_parallel_embedding(const Tensor& weight, const Tensor& indices, const Axis& axis, std::int64_t V,
                                std::optional<std::int64_t> padding_idx = {});

struct VocabParallelLossParams {
  std::int64_t ignore_index = -100;       ///< rows with this target are ignored
  Reduction reduction = Reduction::mean;  ///< mean or sum
  double label_smoothing = 0;             ///< in [0, 1]
  /// Rows whose logits exist at the same time. 0 takes about four million logits of this rank.
  std::int64_t chunk_rows = 0;
  /// Counts what the ranks send, if it is not null.
  std::shared_ptr<ConversionTraffic> traffic = {};
};

/// linear_cross_entropy(x, weight, target) of the whole weight (V, E), of which `weight` has this rank's
/// rows. x (..., E) is placed as replicated: each rank computes a part of its gradient. Targets are integers
/// (...) in [0, V), equal on all ranks. The result is 0-d and invariant.
///
/// Computes chunks of rows. Each chunk needs two all-reduces: of the largest logits, and of three numbers for
/// each row (the sum of the exponentials, the target's logit, the sum of the logits). If a gradient is
/// needed, the forward pass computes it too, as linear_cross_entropy() does. So no rank has the logits of all
/// words, and backward communicates nothing. Differentiable once. Throws what linear_cross_entropy() throws.
///
/// Source: Megatron-LM's vocab_parallel_cross_entropy, PyTorch's loss_parallel.
Tensor vocab_parallel_linear_cross_entropy(const Tensor& x, const Tensor& weight, const Tensor& target,
                                           const Axis& axis, std::int64_t V,
                                           const VocabParallelLossParams& params = {});

/// cross_entropy(logits, target) of logits (..., V), of which `logits` has this rank's part of the last
/// dimension: what a layer of TensorStyle::column returns.
Tensor vocab_parallel_cross_entropy(const Tensor& logits, const Tensor& target, const Axis& axis,
                                    std::int64_t V, const VocabParallelLossParams& params = {});

}  // namespace tapestry::distributed
