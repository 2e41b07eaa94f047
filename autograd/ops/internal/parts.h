#pragma once
// Takes a part of a tensor along one dimension, and computes the gradient of this operation. narrow, slice,
// select, split, cat and stack are built on these functions.
#include <optional>

#include "tapestry/autograd/op.h"
#include "tapestry/core/tensor.h"

namespace tapestry::autograd {

/// `length` elements of a dimension: start, start + step, ...
struct Part {
  int dim;
  std::int64_t start, length, step = 1;
  bool drop = false;  ///< removes the dimension; requires length 1
};

/// The part start:end:step, as in Python, of a dimension of this size. Limits out of range are clamped. step
/// is at least 1.
Part slice_part(int dim, std::int64_t size, std::optional<std::int64_t> start,
                std::optional<std::int64_t> end, std::int64_t step);
/// The part as a view of x, not recorded.
Tensor raw_part(const Tensor& x, const Part& part);
/// The part as a view of x, recorded as `op`.
Tensor recorded_part(const Op& op, const Tensor& x, const Part& part);
/// The gradient of a tensor of shape `sizes`, computed from the gradient `g` of its part. It is g at the
/// part's elements, and 0 elsewhere. Recorded if g is.
Tensor part_backward(const Tensor& g, const Shape& sizes, const Part& part);

/// The diagonal of dimensions d1 and d2 as a view of x, not recorded. See diagonal().
Tensor raw_diagonal(const Tensor& x, std::int64_t offset, int d1, int d2);
/// x with the order of the elements reversed along the dimensions whose bits are set in `mask`. The result is
/// a view with negative strides, not recorded. Only kernels::copy may read it (kernels/ops/copy.h). x has
/// elements.
Tensor raw_flip(const Tensor& x, unsigned mask);

}  // namespace tapestry::autograd
