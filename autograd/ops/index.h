#pragma once
// Selection of elements by index tensors and masks.
//
// Index tensors may have any integer dtype. An index out of range is an IndexError; on a GPU it is thrown
// when the host next waits for the work. Results do not depend on the number of threads. On a GPU they do not
// change between runs either, because sums over equal indices are computed in order of position, without
// atomics. If an operation writes one element several times, the last write counts, where PyTorch leaves the
// result open.
//
// The functions whose method has an underscore (scatter_, index_put_) also change a tensor in place.
#include <optional>
#include <string_view>
#include <vector>

#include "tapestry/core/indexing.h"
#include "tapestry/core/tensor.h"

namespace tapestry {

// ---- indices along one dimension

/// Copies the entries of `dim` that a 1-d integer tensor selects.
Tensor index_select(const Tensor& x, std::int64_t dim, const Tensor& index);
/// Adds alpha * source[..., i, ...] to entry index[i] of `dim`, for each i. source has x's shape, except that
/// its size along `dim` is that of the 1-d tensor `index`. Sums of f16 and bf16 are accumulated in f32.
/// Throws TypeError if x holds integers or bools and alpha is real.
Tensor index_add(const Tensor& x, std::int64_t dim, const Tensor& index, const Tensor& source,
                 const Scalar& alpha = 1);
/// Writes source[..., i, ...] to entry index[i] of `dim`. Shapes are as in index_add.
Tensor index_copy(const Tensor& x, std::int64_t dim, const Tensor& index, const Tensor& source);
/// Sets the entries index[i] of `dim` to `value`. Negative indices count from the end.
Tensor index_fill(const Tensor& x, std::int64_t dim, const Tensor& index, const Scalar& value);

// ---- one index per element. `index` has as many dimensions as x, and is not larger than x except along
// `dim`.

/// Returns a tensor of index's shape: for 3 dimensions and dim = 1, y[i][j][k] = x[i][index[i][j][k]][k].
Tensor gather(const Tensor& x, std::int64_t dim, const Tensor& index);
/// The reverse of gather: x[i][index[i][j][k]][k] = src[i][j][k] for dim = 1. src has x's dtype, and each
/// size is at least index's. The gradient of src is right only if no element is written twice.
Tensor scatter(const Tensor& x, std::int64_t dim, const Tensor& index, const Tensor& src);
/// Writes a number instead of elements.
Tensor scatter(const Tensor& x, std::int64_t dim, const Tensor& index, const Scalar& value);
/// Adds the elements of src instead of writing them. Sums of f16 and bf16 are accumulated in f32, and a sum
/// of bools is true if one of them is.
Tensor scatter_add(const Tensor& x, std::int64_t dim, const Tensor& index, const Tensor& src);
/// Combines each element of x with the elements of src that `index` sends to it. `reduce` is "sum", "prod",
/// "mean", "amax" or "amin". Without `include_self`, the old value of an element of x that gets any elements
/// does not count. "mean" takes floating dtypes only. For amax and amin, ties share the gradient equally.
Tensor scatter_reduce(const Tensor& x, std::int64_t dim, const Tensor& index, const Tensor& src,
                      std::string_view reduce, bool include_self = true);
/// gather(), after x and `indices` were broadcast to each other in all dimensions but `dim`. Without a
/// dimension, indices count in the flattened tensor. Negative indices count from the end, unlike gather()'s.
Tensor take_along_dim(const Tensor& x, const Tensor& indices, std::optional<std::int64_t> dim = {});

// ---- indices into several dimensions, as x[...] in Python

/// Returns x[indices]. Each index is an integer, indexing::Slice, indexing::None, indexing::Ellipsis (or
/// "..."), a bool, a bool tensor, or an integer tensor. The rules are PyTorch's. Without tensors and bools,
/// the result is a view. Integer tensors broadcast to a common shape, and negative indices count from the
/// end. If they index adjacent dimensions, the common shape replaces these dimensions; otherwise it comes
/// first. A bool tensor replaces as many dimensions as it has, and has their sizes. It stands for the
/// coordinates of its true elements. Their number must be known, so the host waits for a GPU. An integer
/// tensor with 0 dimensions is treated as an integer, and the host waits for a GPU.
/// A tensor of uint8 is a TypeError: it could be meant as a mask or as indices.
Tensor index(const Tensor& x, const std::vector<indexing::TensorIndex>& indices);
/// Returns a copy of x with x[indices] = values, or x[indices] += values if `accumulate`. `values` broadcasts
/// to the shape of x[indices]. Equal indices accumulate all their values.
Tensor index_put(const Tensor& x, const std::vector<indexing::TensorIndex>& indices, const Tensor& values,
                 bool accumulate = false);
/// Returns the elements of the flattened tensor x at `index`, an integer tensor, in its shape. Negative
/// indices count from the end.
Tensor take(const Tensor& x, const Tensor& index);

// ---- masks

/// Returns the elements of x where `mask` is true, as a 1-d tensor, in row-major order. x and the bool tensor
/// `mask` broadcast. Waits for a GPU, because the number of elements must be known.
Tensor masked_select(const Tensor& x, const Tensor& mask);
/// Returns the coordinates of the elements that are not 0, as i64 of shape (number of elements,
/// dimensions), in row-major order. Waits for a GPU.
Tensor nonzero(const Tensor& x);
/// torch.nonzero(x, as_tuple=True): one 1-d tensor per dimension. A 0-d tensor is treated as 1-d.
std::vector<Tensor> nonzero_numpy(const Tensor& x);
/// Another name for nonzero().
inline Tensor argwhere(const Tensor& x) { return nonzero(x); }
/// Returns a copy of x whose elements where `mask` is true are the first elements of `source`, both in
/// row-major order. x and the bool tensor `mask` broadcast. `source` has x's dtype. Waits for a GPU. Throws
/// ValueError if `source` has too few elements.
Tensor masked_scatter(const Tensor& x, const Tensor& mask, const Tensor& source);
/// Returns an i64 tensor with one more dimension, of size `num_classes`, which is 1 at the index and 0
/// elsewhere. With num_classes = -1, the number of classes is the largest index plus 1; the host then waits
/// for a GPU.
Tensor one_hot(const Tensor& index, std::int64_t num_classes = -1);

}  // namespace tapestry
