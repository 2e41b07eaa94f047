#pragma once
// Context parallelism: attention of a sequence that the ranks of an axis divide.
//
//   const Tensor x = divide_sequence(tokens, 1, context, SequenceOrder::zigzag);   // this rank's rows
//   ...
//   const Tensor y = ring_attention(q, k, v, context, {.is_causal = true, .order = SequenceOrder::zigzag});
//
// Each function takes this rank's rows of q (batch, heads, rows, width), k (batch, groups, rows, width) and v
// (batch, groups, rows, value width), and returns this rank's rows of the result (batch, heads, rows, value
// width). All ranks have as many rows. `groups` divides `heads` (grouped queries); keys and values are sent
// as they are, not repeated. On an axis of one rank all of them are scaled_dot_product_attention(). Autocast
// converts q, k and v as it does there, before anything is sent.
//
// | function             | order with a mask | masks             |
// |----------------------|-------------------|-------------------|
// | gathered_attention   | contiguous        | causal, documents |
// | ring_attention       | zigzag            | causal            |
// | all_to_all_attention | contiguous        | causal, documents |
//
// What a rank sends, and as much as it receives. n is the number of ranks, and KV the bytes of one rank's
// keys and values. KV32 is the bytes of their gradients in f32 (f64 for f64): twice KV for 16 bits.
//
// | function             | forward                               | backward                              |
// |----------------------|---------------------------------------|---------------------------------------|
// | gathered_attention   | (n - 1) KV, before compute            | (n - 1) KV                            |
// | ring_attention       | (n - 1) KV, a part at a time          | (n - 1) KV + n KV32, a part at a time |
// | all_to_all_attention | (n - 1) / n of its q, k, v and result | the same                              |
//
// Before anything is sent, each function throws ValueError for tensors of other dimensions, sizes that do not
// fit, heads that the groups do not divide, a wrong order, and masks or sizes that it cannot take; TypeError
// unless q, k and v have the same floating dtype, the documents are int64 and the mask is bool; and
// DeviceError unless all of them are on one device.
#include <cstdint>
#include <memory>
#include <optional>

#include "tapestry/core/tensor.h"
#include "tapestry/distributed/context/sequence.h"
#include "tapestry/distributed/mesh/mesh.h"
#include "tapestry/distributed/placement/convert.h"

namespace tapestry::distributed {

struct ContextAttentionOptions {
  bool is_causal = false;
  /// The order in which the ranks have the rows. It must be set, to the order of the table above, if there is
  /// a mask (is_causal or documents). Without a mask the order does not matter, and this is ignored.
  std::optional<SequenceOrder> order = {};
  std::optional<double> scale = {};  ///< the default is 1 / sqrt(width)
  /// The number of each position's document, int64 (batch, length), for the whole sequence and equal on all
  /// ranks. A query sees the keys of its own document only. If undefined, all positions are of one document.
  Tensor documents = {};
  /// The result of context_document_mask(), which several attentions can share. Set it in place of is_causal
  /// and documents.
  Tensor mask = {};
  /// Counts how long the host waits for other ranks, in forward and in backward, if it is not null.
  std::shared_ptr<ConversionTraffic> waits = {};
};

/// Which queries a rank computes in a form of attention.
enum class ContextQueries : std::uint8_t {
  own_rows,  ///< of gathered_attention()
  all_rows   ///< of all_to_all_attention()
};
/// Returns ContextAttentionOptions::mask, bool (batch, 1, queries, length). It is true where a query sees a
/// key: a key of its own document and, if `is_causal`, no later one. `documents` is as in the options. Throws
/// ValueError if the ranks cannot divide the length equally.
Tensor context_document_mask(const Tensor& documents, const Axis& axis, ContextQueries queries,
                             bool is_causal);

/// Each rank gathers all keys and values. Their gradients are summed and divided again.
Tensor gathered_attention(const Tensor& q, const Tensor& k, const Tensor& v, const Axis& axis,
                          const ContextAttentionOptions& options = {});

/// The name of the spans in which a ring computes. The number of the step follows it.
inline constexpr const char* kRingStep = "attention of step";

/// Keys and values travel from rank to rank in a ring, while each rank attends to those that it has (Liu et
/// al., "Ring attention with blockwise transformers", 2023). Partial results are merged by their log-sum-exp,
/// in f32 (f64 for f64). In backward the gradients of keys and values travel one hop behind them. With
/// `is_causal`, the rows are in zigzag order (sequence.h), so their number must be even. Its gradient has no
/// gradient.
Tensor ring_attention(const Tensor& q, const Tensor& k, const Tensor& v, const Axis& axis,
                      const ContextAttentionOptions& options = {});

/// An all-to-all gives each rank the whole sequence of some heads, and another one divides the result by rows
/// again (Jacobs et al., "DeepSpeed Ulysses", 2023). The number of ranks must divide that of the groups.
Tensor all_to_all_attention(const Tensor& q, const Tensor& k, const Tensor& v, const Axis& axis,
                            const ContextAttentionOptions& options = {});

}  // namespace tapestry::distributed
