#pragma once
#include <cstdint>
#include <optional>

#include "tapestry/core/tensor.h"

namespace tapestry {

struct AttentionParams {
  /// A tensor that broadcasts to (..., L, S). If it is bool, true means that the query sees the key. If it
  /// has the input's dtype, it is added to the scores.
  Tensor attn_mask = {};
  double dropout_p = 0;    ///< dropout probability of the attention weights
  bool is_causal = false;  ///< query i sees keys 0 to i + causal_offset only; excludes a mask
  /// S - L if the queries are the last of the keys, as after a key/value cache (PyTorch:
  /// causal_lower_right). It must not be negative, and is 0 without is_causal.
  std::int64_t causal_offset = 0;
  std::optional<double> scale = {};  ///< the default is 1 / sqrt(E)
  /// Grouped queries (Ainslie et al. 2023): k and v may have fewer heads than q in dimension -3. Each of
  /// their heads serves the same number of consecutive heads of q.
  bool enable_gqa = false;
};

/// Computes softmax(q k^T scale + mask) v (Vaswani et al. 2017). Shapes: q is (..., L, E), k is (..., S, E),
/// v is (..., S, V), and the result is (..., L, V). Batch dimensions broadcast. The result of a query that
/// sees no key is 0, as in PyTorch. Throws TypeError unless all tensors have the same floating dtype, and
/// ValueError if the shapes do not fit.
Tensor scaled_dot_product_attention(const Tensor& q, const Tensor& k, const Tensor& v,
                                    const AttentionParams& params = {});

}  // namespace tapestry
