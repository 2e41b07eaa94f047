#pragma once
#include "tapestry/autograd/ops/attention.h"
#include "tapestry/distributed/context/attention.h"

namespace tapestry::distributed {

/// What autocast looks up for the functions of context/attention.h: they are cast as this operation is.
inline constexpr const char* kCastLike = "scaled_dot_product_attention";

/// Throws what context/attention.h says, unless the tensors and the axis are what all of its functions take,
/// and the rows have the order `needed` if there is a mask. `queries` are those that the function computes on
/// a rank, for the shape of a mask. Returns the parameters of attention that do not depend on the rank:
/// without masks.
AttentionParams check_context(const char* op, const Tensor& q, const Tensor& k, const Tensor& v,
                              const Axis& axis, const ContextAttentionOptions& options, SequenceOrder needed,
                              ContextQueries queries);

}  // namespace tapestry::distributed
