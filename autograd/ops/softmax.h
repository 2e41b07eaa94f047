#pragma once
#include "tapestry/core/tensor.h"

namespace tapestry {

/// exp(x) / sum(exp(x)) along `dim`, shifted by the maximum; shaped like x, floating dtypes only (TypeError).
/// A row that is all -inf gives NaN, as in PyTorch.
Tensor softmax(const Tensor& x, std::int64_t dim);
Tensor log_softmax(const Tensor& x, std::int64_t dim);

}  // namespace tapestry
