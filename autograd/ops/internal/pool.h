#pragma once
// The two-dimensional pools, under the name of the operation that calls them.
#include "tapestry/autograd/op.h"
#include "tapestry/autograd/ops/pool.h"
#include "tapestry/kernels/ops/pool.h"

namespace tapestry::autograd {

/// The number of windows along a dimension; 0 if none fits.
std::int64_t pool_size(std::int64_t in, std::int64_t kernel, std::int64_t stride, std::int64_t padding,
                       std::int64_t dilation, bool ceil_mode);

/// The result of a maximum pool. `places` is defined if the pool was asked for them, or recorded.
struct MaxPooled {
  Tensor y, places;
  kernels::Pool2dShape shape;
};
MaxPooled max_pooled(const Op& op, const Tensor& x, const Pool2dParams& params, bool with_places);
/// The maxima's indices h * W + w in the image, as i64. A window that lies wholly in the padding has -1.
Tensor flat_indices(const MaxPooled& pooled);

Tensor average_pooled(const Op& op, const Tensor& x, const Pool2dParams& params);
Tensor adaptively_averaged(const Op& op, const Tensor& x, Pair output_size);

}  // namespace tapestry::autograd
