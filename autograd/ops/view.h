#pragma once
// Views, and operations that copy elements without changing them. Unless a comment says otherwise, the result
// is a view: it shares x's storage. A negative dimension counts from the end. The functions throw IndexError
// if a dimension does not exist, and ValueError if a shape does not fit.
#include <optional>
#include <vector>

#include "tapestry/autograd/ops/copy.h"
#include "tapestry/autograd/ops/index.h"
#include "tapestry/core/tensor.h"

namespace tapestry {

/// Returns a view with another shape. One size may be -1 and is inferred. Throws ValueError if the strides do
/// not allow a view.
Tensor view(const Tensor& x, const Shape& sizes);
/// Returns a view if the strides allow it, else a copy.
Tensor reshape(const Tensor& x, const Shape& sizes);
/// Merges dimensions start to end, both included, into one, by reshape(). A 0-d tensor becomes 1-d.
Tensor flatten(const Tensor& x, std::int64_t start = 0, std::int64_t end = -1);
/// Exchanges dimensions a and b.
Tensor transpose(const Tensor& x, std::int64_t a, std::int64_t b);
/// Reorders the dimensions: dimension i of the result is dimension dims[i] of x. `dims` names each dimension
/// once.
Tensor permute(const Tensor& x, const Dims& dims);
/// Removes all dimensions of size 1, or only `dim` if its size is 1.
Tensor squeeze(const Tensor& x);
Tensor squeeze(const Tensor& x, std::int64_t dim);
/// Inserts a dimension of size 1 as dimension `dim` of the result.
Tensor unsqueeze(const Tensor& x, std::int64_t dim);
/// Broadcasts dimensions of size 1. A size of -1 keeps the dimension's size. The result must not be written
/// to.
Tensor expand(const Tensor& x, const Shape& sizes);
/// Returns elements start to start + length - 1 of one dimension. Throws IndexError unless they all exist.
Tensor narrow(const Tensor& x, std::int64_t dim, std::int64_t start, std::int64_t length);
/// Returns x[start:end:step] along one dimension, as in Python. Limits out of range are clamped. step is at
/// least 1.
Tensor slice(const Tensor& x, std::int64_t dim, std::optional<std::int64_t> start = {},
             std::optional<std::int64_t> end = {}, std::int64_t step = 1);
/// Selects one index of a dimension, and removes the dimension. Throws IndexError if the index is out of
/// range.
Tensor select(const Tensor& x, std::int64_t dim, std::int64_t index);
/// Divide `dim` into consecutive parts. split() by `size` gives parts of that size, and the last may be
/// shorter. split() by sizes gives parts of these sizes, whose sum must be the size of `dim`. chunk() gives
/// at most `chunks` parts of about equal size.
std::vector<Tensor> split(const Tensor& x, std::int64_t size, std::int64_t dim = 0);
std::vector<Tensor> split(const Tensor& x, const std::vector<std::int64_t>& sizes, std::int64_t dim = 0);
std::vector<Tensor> chunk(const Tensor& x, std::int64_t chunks, std::int64_t dim = 0);

/// Concatenates copies of the tensors along `dim`. All other sizes and the devices must agree. The dtypes
/// promote.
Tensor cat(const std::vector<Tensor>& tensors, std::int64_t dim = 0);
/// Concatenates copies of the tensors along a new dimension.
Tensor stack(const std::vector<Tensor>& tensors, std::int64_t dim = 0);

}  // namespace tapestry
