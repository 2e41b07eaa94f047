#pragma once
// Helpers that the reductions share.
#include "tapestry/autograd/op.h"
#include "tapestry/core/tensor.h"

namespace tapestry::autograd {

/// Checks the input and the dimensions of a reduction, and computes its shapes.
struct Reduced {
  Reduced(const Op& op, const Tensor& x, const Dims& dims, bool keepdim);

  /// The dimensions that are reduced; none if x is 0-d.
  Dims dims() const;

  unsigned mask = 0;       ///< bit i: dimension i is reduced
  std::int64_t count = 1;  ///< number of elements that are reduced to one result
  Shape sizes;             ///< the shape of the result
  Shape kept;              ///< shape of the result with keepdim
};

/// True where x equals `best`, the largest or smallest element of its group, or both are NaN. `best`
/// broadcasts to x.
Tensor is_best(const Tensor& x, const Tensor& best);
/// Divides the gradient g of a reduction equally among ties. The divisor is the number of elements of the
/// reduced group that `hits` marks. The result has g's shape.
Tensor divided_among(const Tensor& g, const Tensor& hits, const Reduced& r);

}  // namespace tapestry::autograd
