#include "tapestry/distributed/context/attention.h"

#include "tapestry/autograd/internal/autocast.h"
#include "tapestry/autograd/ops/creation.h"
#include "tapestry/autograd/ops/elementwise.h"
#include "tapestry/autograd/ops/internal/attention.h"
#include "tapestry/autograd/ops/view.h"
#include "tapestry/core/error.h"
#include "tapestry/distributed/context/internal/checks.h"
#include "tapestry/distributed/placement/convert.h"

namespace tapestry::distributed {

namespace {
const char* name_of(SequenceOrder order) {
  return order == SequenceOrder::zigzag ? "SequenceOrder::zigzag" : "SequenceOrder::contiguous";
}
}  // namespace

AttentionParams check_context(const char* op, const Tensor& q, const Tensor& k, const Tensor& v,
                              const Axis& axis, const ContextAttentionOptions& options, SequenceOrder needed,
                              ContextQueries queries) {
  for (const auto& [t, what] : {std::pair<const Tensor&, const char*>{q, "q"}, {k, "k"}, {v, "v"}}) {
    detail::check_defined(op, t, what);
    check(t.dim() == 4, "[", op, "] ", what, " has the shape ", t.sizes(),
          "; expected (batch, heads, rows, width)");
  }
  check(k.size(1) > 0 && k.size(1) == v.size(1) && q.size(1) % k.size(1) == 0, "[", op, "] q has ", q.size(1),
        " heads, k ", k.size(1), " and v ", v.size(1),
        "; the heads of k and v must be equal and divide those of q");
  check(q.size(2) == k.size(2) && q.size(2) == v.size(2), "[", op, "] q has ", q.size(2), " rows, k ",
        k.size(2), " and v ", v.size(2), "; pass this rank's rows of each");
  check(q.size(0) == k.size(0) && q.size(0) == v.size(0), "[", op, "] q has a batch of ", q.size(0),
        ", k of ", k.size(0), " and v of ", v.size(0), "; they must be equal");
  const AttentionParams params{.scale = options.scale, .enable_gqa = q.size(1) != k.size(1)};
  autograd::check_attention(op, q, k, v, params);
  check(!axis.over_devices(), "[", op, "] axis ", axis.name(),
        " is over devices of one process; use one over ranks");
  const Tensor& documents = options.documents;
  check(
      !options.mask.defined() || (!options.is_causal && !documents.defined()), "[", op,
      "] options have a mask, and documents or is_causal beside it; the mask of context_document_mask() says "
      "both, so leave them out");
  if (const Tensor& mask = options.mask; mask.defined()) {
    const std::int64_t length = q.size(2) * axis.size();
    const Shape expected{q.size(0), 1, queries == ContextQueries::all_rows ? length : q.size(2), length};
    check<TypeError>(mask.dtype() == DType::boolean, "[", op, "] the mask is ", mask.dtype(),
                     "; pass what context_document_mask() returned, which is bool");
    check(mask.sizes() == expected, "[", op, "] the mask has the shape ", mask.sizes(), "; expected ",
          expected, ", that of context_document_mask() for ContextQueries::",
          queries == ContextQueries::all_rows ? "all_rows" : "own_rows");
    check<DeviceError>(mask.device() == q.device(), "[", op, "] the mask is on ", mask.device(),
                       ", but q is on ", q.device(), "; move it there");
  }
  if (options.is_causal || documents.defined() || options.mask.defined())
    check(options.order == needed, "[", op, "] with a mask the rows must be in the order ", name_of(needed),
          ", but options.order is ", options.order ? name_of(*options.order) : "not set",
          "; divide the sequence in that order (divide_sequence()) and set options.order to it");
  if (documents.defined()) {
    const Shape expected{q.size(0), q.size(2) * axis.size()};
    check<TypeError>(documents.dtype() == DType::i64, "[", op, "] the documents are ", documents.dtype(),
                     "; convert them to int64");
    check(documents.sizes() == expected, "[", op, "] the documents have the shape ", documents.sizes(),
          "; expected (batch, length) of the whole sequence, ", expected);
    check<DeviceError>(documents.device() == q.device(), "[", op, "] the documents are on ",
                       documents.device(), ", but q is on ", q.device(), "; move them there");
  }
  return params;
}

namespace {

Tensor document_mask_from(const Tensor& documents, std::int64_t begin, std::int64_t rows, bool is_causal) {
  const Tensor same = eq(documents.narrow(1, begin, rows).unsqueeze(2), documents.unsqueeze(1));
  if (!is_causal) return same.unsqueeze(1);
  const TensorOptions integers(DType::i64, documents.device());
  const Tensor earlier =
      le(arange(documents.size(1), integers), (arange(rows, integers) + begin).unsqueeze(1));
  return logical_and(same, earlier).unsqueeze(1);
}

// Attention of queries that begin at position `begin` to all keys.
Tensor attend(const Tensor& q, const Tensor& k, const Tensor& v, std::int64_t begin, AttentionParams params,
              const ContextAttentionOptions& options) {
  if (!options.documents.defined() && !options.mask.defined()) {
    params.is_causal = options.is_causal;
    if (options.is_causal) params.causal_offset = begin;
    return scaled_dot_product_attention(q, k, v, params);
  }
  params.attn_mask = options.mask.defined()
                         ? options.mask
                         : document_mask_from(options.documents, begin, q.size(2), options.is_causal);
  return scaled_dot_product_attention(q, k, v, params);
}

// Of conversions that are posted one after another, backward waits for the last one first. The others do not
// fill their waits.
ConvertOptions without_fill(ConvertOptions how) {
  how.fills_wait = false;
  return how;
}

}  // namespace

Tensor context_document_mask(const Tensor& documents, const Axis& axis, ContextQueries queries,
                             bool is_causal) {
  detail::check_defined("context_document_mask", documents, "documents");
  check(documents.dim() == 2 && documents.dtype() == DType::i64 && documents.size(1) % axis.size() == 0,
        "[context_document_mask] the documents have the shape ", documents.sizes(), " and dtype ",
        documents.dtype(), "; expected int64 (batch, length) with a length that ", axis.size(),
        " ranks divide equally");
  const std::int64_t rows = documents.size(1) / axis.size();
  if (queries == ContextQueries::all_rows)
    return document_mask_from(documents, 0, documents.size(1), is_causal);
  return document_mask_from(documents, rows * axis.coordinate(), rows, is_causal);
}

Tensor gathered_attention(const Tensor& q, const Tensor& k, const Tensor& v, const Axis& axis,
                          const ContextAttentionOptions& options) {
  if (const autograd::Autocast cast(kCastLike, q, k, v); cast)
    return gathered_attention(cast(q), cast(k), cast(v), axis, options);
  const AttentionParams params = check_context("gathered_attention", q, k, v, axis, options,
                                               SequenceOrder::contiguous, ContextQueries::own_rows);
  const Placement rows = Placement::sharded(2), all = Placement::replicated();
  const ConvertOptions how{.check_if_placed = true, .traffic = options.waits};
  const ConvertOptions first = without_fill(how);
  PendingConversion keys = begin_convert(k, axis, rows, all, first),
                    values = begin_convert(v, axis, rows, all, how);
  const Tensor whole_k = keys.finish();
  return attend(q, whole_k, values.finish(), q.size(2) * axis.coordinate(), params, options);
}

Tensor all_to_all_attention(const Tensor& q, const Tensor& k, const Tensor& v, const Axis& axis,
                            const ContextAttentionOptions& options) {
  if (const autograd::Autocast cast(kCastLike, q, k, v); cast)
    return all_to_all_attention(cast(q), cast(k), cast(v), axis, options);
  const AttentionParams params = check_context("all_to_all_attention", q, k, v, axis, options,
                                               SequenceOrder::contiguous, ContextQueries::all_rows);
  check(k.size(1) % axis.size() == 0, "[all_to_all_attention] ", axis.size(), " ranks cannot divide ",
        k.size(1), " heads of k and v equally; use ring_attention() or gathered_attention()");
  const Placement rows = Placement::sharded(2), heads = Placement::sharded(1);
  const ConvertOptions how{.check_if_placed = true, .traffic = options.waits};
  const ConvertOptions first = without_fill(how);
  PendingConversion of_q = begin_convert(q, axis, rows, heads, first),
                    of_k = begin_convert(k, axis, rows, heads, first),
                    of_v = begin_convert(v, axis, rows, heads, how);
  const Tensor all_q = of_q.finish(), all_k = of_k.finish();
  return convert(attend(all_q, all_k, of_v.finish(), 0, params, options), axis, heads, rows, how);
}

}  // namespace tapestry::distributed
