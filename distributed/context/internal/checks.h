#pragma once
#include "tapestry/autograd/ops/attention.h"
#include "tapestry/distributed/context/attention.h"

namespace tapestry::distributed {

/// Throws ValueError unless the tensors and the axis are what all functions of context/attention.h take.
/// Returns the parameters of attention that do not depend on the rank: without masks.
AttentionParams check_context(const char* op, const Tensor& q, const Tensor& k, const Tensor& v,
                              const Axis& axis, const ContextAttentionOptions& options);

}  // namespace tapestry::distributed
