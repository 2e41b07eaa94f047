#pragma once
// Pooling over (N, C, H, W) or (C, H, W), in either layout.
#include "tapestry/autograd/ops/conv.h"
#include "tapestry/core/tensor.h"

namespace tapestry {

struct Pool2dParams {
  Pair kernel_size;
  Pair stride = 0;    ///< 0 means kernel_size
  Pair padding = 0;   ///< at most half of kernel_size
  Pair dilation = 1;  ///< max_pool2d only
  bool ceil_mode = false;
  bool count_include_pad = true;  ///< avg_pool2d only
};

/// Returns the maximum of each window. Padding counts as -inf. If a window has a NaN, the result is NaN. The
/// gradient goes to the first maximum. The result is (N, C, P, Q) with P = (H + 2 padding - dilation
/// (kernel_size - 1) - 1) / stride + 1, rounded down, or rounded up with ceil_mode. Throws ValueError if the
/// window does not fit.
Tensor max_pool2d(const Tensor& x, const Pool2dParams& params);
/// Returns the average of each window. The result has the shape of max_pool2d's.
Tensor avg_pool2d(const Tensor& x, const Pool2dParams& params);
/// Returns averages over the windows [floor(i H / P), ceil((i + 1) H / P)). The result is (N, C, P, Q) for
/// output_size (P, Q).
Tensor adaptive_avg_pool2d(const Tensor& x, Pair output_size);

}  // namespace tapestry
