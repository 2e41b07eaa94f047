#pragma once
// Attention in parts: over some of the keys at a time, for ranks or loops that never have all of them. The
// parts are put together by the logarithms of the queries' sums of exponentials (log-sum-exp).
#include "tapestry/autograd/ops/attention.h"
#include "tapestry/core/tensor.h"

namespace tapestry {

struct AttentionWithLse {
  Tensor out;  ///< (batch, heads, queries, value width), what scaled_dot_product_attention() gives
  /// (batch, heads, queries): log(sum over the keys of exp(score)), where the scores are scaled and masked.
  /// f64 if the inputs are f64, and f32 otherwise. -inf for a query that sees no key.
  Tensor lse;
};
struct AttentionGrads {
  Tensor dq, dk, dv;
};

/// Attention to these keys, with its log-sum-exp. All tensors have four dimensions. Is not recorded: backward
/// is attention_with_lse_backward(). Throws what scaled_dot_product_attention() throws, and ValueError for
/// tensors of other dimensions, batches that differ, and dropout.
AttentionWithLse attention_with_lse(const Tensor& q, const Tensor& k, const Tensor& v,
                                    const AttentionParams& params = {});

/// Puts `part`, the same queries' attention to other keys, into `total`, which is an empty AttentionWithLse
/// at first. `total.out` has the dtype of the log-sum-exp, so that many parts do not add many roundings.
void merge_attention(AttentionWithLse& total, const AttentionWithLse& part);

/// The gradients of q, and of these keys and values, in attention to more keys. `out` and `lse` are its
/// result for all keys, and `dout` is the gradient of `out`, of q's dtype. The gradients of q by all parts
/// add up to that of q. Throws what attention_with_lse() throws, and ValueError or TypeError if the results
/// do not fit.
AttentionGrads attention_with_lse_backward(const Tensor& dout, const Tensor& q, const Tensor& k,
                                           const Tensor& v, const Tensor& out, const Tensor& lse,
                                           const AttentionParams& params = {});

}  // namespace tapestry
