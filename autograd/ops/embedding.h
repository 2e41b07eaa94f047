#pragma once
#include <optional>

#include "tapestry/core/tensor.h"

namespace tapestry {

/// Gathers rows of weight (V, D) by indices of any integer dtype and any shape (...). The result is (..., D).
/// Row `padding_idx` gets no gradient. Throws IndexError for an index outside [0, V); on a GPU it does so
/// when the host next waits for the work.
Tensor embedding(const Tensor& weight, const Tensor& indices, std::optional<std::int64_t> padding_idx = {});

/// The further parameters of torch.nn.functional.embedding.
struct EmbeddingParams {
  std::optional<std::int64_t> padding_idx = {};
  /// Before the lookup, the rows that the indices select are scaled down in place to this norm. The change is
  /// not recorded, as if it had been made before the forward pass.
  std::optional<double> max_norm = {};
  double norm_type = 2;             ///< the p of the norm
  bool scale_grad_by_freq = false;  ///< divides the gradient of a row by how often the indices select it
};
Tensor embedding(const Tensor& weight, const Tensor& indices, const EmbeddingParams& params);

}  // namespace tapestry
