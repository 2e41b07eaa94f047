#pragma once
// Context parallelism: attention of a sequence that the ranks of an axis divide.
//
//   const Tensor x = divide_sequence(tokens, 1, context, SequenceOrder::zigzag);   // this rank's rows
//   ...
//   const Tensor y = ring_attention(q, k, v, context, {.is_causal = true});
//
// Each function takes this rank's rows of q (batch, heads, rows, width), k (batch, groups, rows, width) and v
// (batch, groups, rows, value width), and returns this rank's rows of the result (batch, heads, rows, value
// width). All ranks have as many rows. `groups` divides `heads` (grouped queries); keys and values are sent
// as they are, not repeated. On an axis of one rank all of them are scaled_dot_product_attention().
//
// | function             | order      | sent and received by a rank            | masks             |
// |----------------------|------------|----------------------------------------|-------------------|
// | gathered_attention   | contiguous | all keys and values, before compute    | causal, documents |
// | ring_attention       | zigzag     | the same, a part at a time in compute  | causal            |
// | all_to_all_attention | contiguous | its part of q, k, v and the result     | causal, documents |
//
// Throws ValueError for tensors of other dimensions, heads that the groups do not divide, dropout, and masks
// or sizes that the function cannot take.
#include <optional>

#include "tapestry/core/tensor.h"
#include "tapestry/distributed/mesh/mesh.h"

namespace tapestry::distributed {

struct ContextAttentionOptions {
  bool is_causal = false;
  std::optional<double> scale = {};  ///< the default is 1 / sqrt(width)
  /// The number of each position's document, int64 (batch, length), for the whole sequence and equal on all
  /// ranks. A query sees the keys of its own document only. If undefined, all positions are of one document.
  Tensor documents = {};
};

/// Each rank gathers all keys and values. Their gradients are summed and divided again.
Tensor gathered_attention(const Tensor& q, const Tensor& k, const Tensor& v, const Axis& axis,
                          const ContextAttentionOptions& options = {});

/// Keys and values travel from rank to rank in a ring, while each rank attends to those that it has (Liu et
/// al., "Ring attention with blockwise transformers", 2023). Partial results are merged by their log-sum-exp,
/// in f32 (f64 for f64). In backward the gradients of keys and values travel one hop behind them. With
/// `is_causal`, the rows are in zigzag order (sequence.h), so their number must be even; without it, the
/// order does not matter. Its gradient has no gradient.
Tensor ring_attention(const Tensor& q, const Tensor& k, const Tensor& v, const Axis& axis,
                      const ContextAttentionOptions& options = {});

/// An all-to-all gives each rank the whole sequence of some heads, and another one divides the result by rows
/// again (Jacobs et al., "DeepSpeed Ulysses", 2023). The number of ranks must divide that of the groups.
Tensor all_to_all_attention(const Tensor& q, const Tensor& k, const Tensor& v, const Axis& axis,
                            const ContextAttentionOptions& options = {});

}  // namespace tapestry::distributed
