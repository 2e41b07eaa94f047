#pragma once
// What the reductions share. Not in tapestry.h: for the .cpp files here.
#include "tapestry/autograd/op.h"
#include "tapestry/core/tensor.h"

namespace tapestry::autograd {

/// Checks the input and the dimensions of a reduction and works out its shapes.
struct Reduced {
  Reduced(const Op& op, const Tensor& x, const Dims& dims, bool keepdim);

  unsigned mask = 0;       ///< bit i: dimension i is reduced
  std::int64_t count = 1;  ///< elements that make one result
  Shape sizes;             ///< of the result
  Shape kept;              ///< of the result with keepdim
};

/// Where x equals the best of its group, `best` (which broadcasts to x), or both are NaN.
Tensor is_best(const Tensor& x, const Tensor& best);
/// g / (how many of its group `hits` marks), shaped like g.
Tensor shared_by(const Tensor& g, const Tensor& hits, const Reduced& r);

}  // namespace tapestry::autograd
