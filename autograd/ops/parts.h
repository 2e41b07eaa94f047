#pragma once
// Part of a tensor along one dimension, and its inverse: what narrow, slice, select, split, cat and stack
// share. Not in tapestry.h: for the .cpp files here.
#include "tapestry/core/tensor.h"

namespace tapestry::autograd {

/// `length` elements of a dimension: start, start + step, ...
struct Part {
  int dim;
  std::int64_t start, length, step = 1;
  bool drop = false;  ///< the dimension goes away; length is 1
};

/// The part as a view of x that the tape knows nothing of.
Tensor raw_part(const Tensor& x, const Part& part);
/// Zeros of shape `sizes` with `g` in the place of the part.
Tensor among_zeros(const Tensor& g, const Shape& sizes, const Part& part);

}  // namespace tapestry::autograd
