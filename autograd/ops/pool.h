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

/// Largest of each window; padding counts as -inf, NaN wins; the gradient goes to the first maximum.
Tensor max_pool2d(const Tensor& x, const Pool2dParams& params);
Tensor avg_pool2d(const Tensor& x, const Pool2dParams& params);
/// Averages over windows [floor(i H / P), ceil((i + 1) H / P)).
Tensor adaptive_avg_pool2d(const Tensor& x, Pair output_size);

}  // namespace tapestry
