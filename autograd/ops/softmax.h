#pragma once
#include "tapestry/core/tensor.h"

namespace tapestry {

/// Computes exp(x) / sum(exp(x)) along `dim`. The maximum is subtracted from x first, so that exp() does not
/// overflow. The result has x's shape and dtype. A row whose elements are all -inf gives NaN, as in PyTorch.
/// Throws TypeError unless the dtype is floating.
Tensor softmax(const Tensor& x, std::int64_t dim);
Tensor log_softmax(const Tensor& x, std::int64_t dim);

}  // namespace tapestry
