#pragma once
#include "tapestry/core/tensor.h"

namespace tapestry {

/// In training zeroes each element with probability p and scales the rest by 1 / (1 - p) (Srivastava et al.
/// 2014); otherwise returns x. The mask is a function of the generator's seed and offset, and is not stored.
/// ValueError unless 0 <= p <= 1.
Tensor dropout(const Tensor& x, double p = 0.5, bool training = true);

}  // namespace tapestry
