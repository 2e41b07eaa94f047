#pragma once
#include <optional>

#include "tapestry/core/tensor.h"

namespace tapestry {

struct AttentionParams {
  /// Broadcasts to (..., L, S); bool (true: takes part), or of the input's dtype and added to the scores.
  Tensor mask = {};
  double dropout = 0;                ///< on the attention weights
  bool causal = false;               ///< query i sees keys 0 .. i; not together with a mask
  std::optional<double> scale = {};  ///< 1 / sqrt(E) when absent
};

/// softmax(q k^T scale + mask) v (Vaswani et al. 2017): q (..., L, E), k (..., S, E), v (..., S, V); result
/// (..., L, V), with batches that broadcast. One floating dtype (TypeError otherwise); ValueError for shapes
/// that do not fit. A query that may see no key gives 0, as in PyTorch.
Tensor scaled_dot_product_attention(const Tensor& q, const Tensor& k, const Tensor& v,
                                    const AttentionParams& params = {});

}  // namespace tapestry
