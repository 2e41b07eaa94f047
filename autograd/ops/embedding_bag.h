#pragma once
// Sums, means and maxima of rows of an embedding.
#include <optional>

#include "tapestry/core/tensor.h"

namespace tapestry {

enum class EmbeddingBagMode { sum, mean, max };

struct EmbeddingBagParams {
  EmbeddingBagMode mode = EmbeddingBagMode::mean;
  /// Where each bag begins in 1-d indices: integers that do not decrease, the first of them 0.
  Tensor offsets = {};
  /// Whether offsets has one more element, which is the number of indices.
  bool include_last_offset = false;
  /// Factors of the rows, of the shape of the indices and the dtype of the weight. For sums only.
  Tensor per_sample_weights = {};
  /// A row that is left out. It does not count in a mean, and gets no gradient.
  std::optional<std::int64_t> padding_idx = {};
};

/// Reduces bags of rows of weight (V, D) to a (B, D) tensor, without storing the rows. The indices are
/// integers: (B, L) with the indices of a bag in each row, or (n) with offsets (B). An empty bag gives 0. Of
/// equal maxima, the first row gets the gradient. Comparisons with NaN are false, as in PyTorch. Gradients
/// add their terms in order of the indices, so they are deterministic on all devices. Throws IndexError for
/// an index outside [0, V) and ValueError for an invalid offset; on a GPU it does so when the host next waits
/// for the work.
Tensor embedding_bag(const Tensor& weight, const Tensor& indices, const EmbeddingBagParams& params = {});

}  // namespace tapestry
