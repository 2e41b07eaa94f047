#pragma once
#include "tapestry/core/tensor.h"

namespace tapestry {

/// In training, sets each element to 0 with probability p and multiplies the others by 1 / (1 - p)
/// (Srivastava et al. 2014). Otherwise returns x. The mask is not stored: backward computes it again from the
/// generator's seed and offset. Throws ValueError unless 0 <= p <= 1.
Tensor dropout(const Tensor& x, double p = 0.5, bool training = true);

}  // namespace tapestry
