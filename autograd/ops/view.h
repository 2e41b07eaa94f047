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
/// Replaces one dimension by several, whose sizes multiply to its size. One of `sizes` may be -1 and is
/// inferred.
Tensor unflatten(const Tensor& x, std::int64_t dim, const Shape& sizes);
/// Merges all dimensions into one, by reshape().
inline Tensor ravel(const Tensor& x) { return flatten(x); }
/// Moves dimension source[i] to position destination[i]. The other dimensions keep their order. moveaxis() is
/// another name for it.
Tensor movedim(const Tensor& x, const Dims& source, const Dims& destination);
inline Tensor moveaxis(const Tensor& x, const Dims& source, const Dims& destination) {
  return movedim(x, source, destination);
}
/// Other names for transpose().
inline Tensor swapaxes(const Tensor& x, std::int64_t a, std::int64_t b) { return transpose(x, a, b); }
inline Tensor swapdims(const Tensor& x, std::int64_t a, std::int64_t b) { return transpose(x, a, b); }
/// Another name for expand().
inline Tensor broadcast_to(const Tensor& x, const Shape& sizes) { return expand(x, sizes); }
/// Expands all tensors to their common broadcast shape.
std::vector<Tensor> broadcast_tensors(const std::vector<Tensor>& tensors);
enum class Indexing { ij, xy };
/// Expands n tensors of at most one dimension to n grids: element [i0, i1, ...] of grid k is element i_k of
/// tensor k. With Indexing::xy, the first two dimensions of the grids are exchanged. Throws TypeError unless
/// all tensors have the same dtype.
std::vector<Tensor> meshgrid(const std::vector<Tensor>& tensors, Indexing indexing = Indexing::ij);
/// Return x as a view with at least 1, 2 or 3 dimensions: a vector of n elements becomes (1, n) and (1, n,
/// 1), and a matrix (m, n) becomes (m, n, 1).
Tensor atleast_1d(const Tensor& x);
Tensor atleast_2d(const Tensor& x);
Tensor atleast_3d(const Tensor& x);
/// Returns the diagonal of the matrices in dimensions dim1 and dim2, as the new last dimension. Its elements
/// have index i in dim1 and i + offset in dim2.
Tensor diagonal(const Tensor& x, std::int64_t offset = 0, std::int64_t dim1 = 0, std::int64_t dim2 = 1);
/// Returns the windows of `size` consecutive elements of `dim` that start at 0, step, 2 step, ... Dimension
/// `dim` of the result counts the windows, and a new last dimension has the elements of a window. Windows
/// overlap if step < size. The result must then not be written to, and the gradient of x adds up the
/// gradients of all windows.
Tensor unfold(const Tensor& x, std::int64_t dim, std::int64_t size, std::int64_t step);
/// Returns a view of x's storage with any sizes and strides. Strides and offset are in elements and not
/// negative. The default offset is x.storage_offset(). Throws ValueError if the view would exceed the
/// storage. The gradient of x adds up the gradients of all elements of the view at the same address. If
/// elements of x share an address, they share its gradient equally, as in PyTorch.
Tensor as_strided(const Tensor& x, const Shape& sizes, const Shape& strides,
                  std::optional<std::int64_t> storage_offset = {});
/// Divide `dim` into consecutive parts. split() by `size` gives parts of that size, and the last may be
/// shorter. split() by sizes gives parts of these sizes, whose sum must be the size of `dim`. chunk() gives
/// at most `chunks` parts of about equal size.
std::vector<Tensor> split(const Tensor& x, std::int64_t size, std::int64_t dim = 0);
std::vector<Tensor> split(const Tensor& x, const std::vector<std::int64_t>& sizes, std::int64_t dim = 0);
std::vector<Tensor> chunk(const Tensor& x, std::int64_t chunks, std::int64_t dim = 0);
/// tensor_split() by `sections` gives that many parts, whose sizes differ by at most 1. tensor_split() by
/// indices gives the slices [0, indices[0]), [indices[0], indices[1]), ..., to the end of `dim`, with limits
/// as in slice().
std::vector<Tensor> tensor_split(const Tensor& x, std::int64_t sections, std::int64_t dim = 0);
std::vector<Tensor> tensor_split(const Tensor& x, const std::vector<std::int64_t>& indices,
                                 std::int64_t dim = 0);
/// tensor_split() along dimension 1 (hsplit; 0 if x is 1-d), 0 (vsplit) or 2 (dsplit). The number of sections
/// must divide the size. Throw ValueError if x has fewer dimensions than 1, 2 and 3.
std::vector<Tensor> hsplit(const Tensor& x, std::int64_t sections);
std::vector<Tensor> hsplit(const Tensor& x, const std::vector<std::int64_t>& indices);
std::vector<Tensor> vsplit(const Tensor& x, std::int64_t sections);
std::vector<Tensor> vsplit(const Tensor& x, const std::vector<std::int64_t>& indices);
std::vector<Tensor> dsplit(const Tensor& x, std::int64_t sections);
std::vector<Tensor> dsplit(const Tensor& x, const std::vector<std::int64_t>& indices);
/// Returns select(dim, i) for every index i.
std::vector<Tensor> unbind(const Tensor& x, std::int64_t dim = 0);

/// Concatenates copies of the tensors along `dim`. All other sizes and the devices must agree. The dtypes
/// promote.
Tensor cat(const std::vector<Tensor>& tensors, std::int64_t dim = 0);
/// Concatenates copies of the tensors along a new dimension.
Tensor stack(const std::vector<Tensor>& tensors, std::int64_t dim = 0);
/// Concatenate copies along dimension 1 (hstack), 0 (vstack) or 2 (dstack). hstack joins 1-d tensors along
/// dimension 0. vstack takes a tensor of shape (n) as (1, n), and dstack as (1, n, 1). dstack takes (m, n) as
/// (m, n, 1).
Tensor hstack(const std::vector<Tensor>& tensors);
Tensor vstack(const std::vector<Tensor>& tensors);
Tensor dstack(const std::vector<Tensor>& tensors);

}  // namespace tapestry
