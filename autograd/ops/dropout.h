#pragma once
// Dropout.
#include "tapestry/core/tensor.h"

namespace tapestry {

/// In training, sets each element to 0 with probability p and multiplies the others by 1 / (1 - p)
/// (Srivastava et al. 2014). Otherwise returns x. The mask is not stored: backward computes it again from the
/// generator's seed and offset. Throws ValueError unless 0 <= p <= 1.
Tensor dropout(const Tensor& x, double p = 0.5, bool training = true);
/// In training, set each channel of x to 0 with probability p and multiply the others by 1 / (1 - p) (Tompson
/// et al. 2015). Shapes: (N, C, L) or (C, L) for dropout1d, (N, C, H, W) or (C, H, W) for dropout2d.
/// PyTorch's dropout2d takes (C, H, W) for (N, C, L).
Tensor dropout1d(const Tensor& x, double p = 0.5, bool training = true);
Tensor dropout2d(const Tensor& x, double p = 0.5, bool training = true);

}  // namespace tapestry
