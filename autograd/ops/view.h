#pragma once
// Views and what moves elements without changing them. Where nothing else is said, the result shares its
// storage. A dimension may be negative, counted from the end; one that does not exist is an IndexError, a
// shape that does not fit a ValueError.
#include <optional>
#include <vector>

#include "tapestry/core/tensor.h"

namespace tapestry {

/// Another shape over the same elements; one size may be -1. ValueError when the strides do not allow it.
Tensor view(const Tensor& x, const Shape& sizes);
/// view() where the strides allow it, else a copy.
Tensor reshape(const Tensor& x, const Shape& sizes);
/// Dimensions start to end, both included, as one; reshape() does it. A 0-d tensor becomes 1-d.
Tensor flatten(const Tensor& x, std::int64_t start = 0, std::int64_t end = -1);
/// Dimensions a and b exchanged.
Tensor transpose(const Tensor& x, std::int64_t a, std::int64_t b);
/// Dimension i of the result is dimension dims[i] of x; each is named once.
Tensor permute(const Tensor& x, const Dims& dims);
/// Without the dimensions of size 1: all of them, or `dim` if its size is 1.
Tensor squeeze(const Tensor& x);
Tensor squeeze(const Tensor& x, std::int64_t dim);
/// A new dimension of size 1 that becomes dimension `dim` of the result.
Tensor unsqueeze(const Tensor& x, std::int64_t dim);
/// Broadcasts dimensions of size 1; -1 keeps a size. The result must not be written to.
Tensor expand(const Tensor& x, const Shape& sizes);
/// Elements start to start + length - 1 of one dimension. IndexError where they do not all exist.
Tensor narrow(const Tensor& x, std::int64_t dim, std::int64_t start, std::int64_t length);
/// Python's x[start:end:step] on one dimension: ends are clamped; step >= 1.
Tensor slice(const Tensor& x, std::int64_t dim, std::optional<std::int64_t> start = {},
             std::optional<std::int64_t> end = {}, std::int64_t step = 1);
/// One index of one dimension, which goes away. IndexError when out of range.
Tensor select(const Tensor& x, std::int64_t dim, std::int64_t index);
/// Consecutive parts of `dim`: of `size` elements each, the last one shorter; of the given sizes, which add
/// up to the whole; or `chunks` of about equal size, or fewer where the elements run out.
std::vector<Tensor> split(const Tensor& x, std::int64_t size, std::int64_t dim = 0);
std::vector<Tensor> split(const Tensor& x, const std::vector<std::int64_t>& sizes, std::int64_t dim = 0);
std::vector<Tensor> chunk(const Tensor& x, std::int64_t chunks, std::int64_t dim = 0);

/// New memory: the tensors one after another along `dim`. All other sizes, and the devices, must agree;
/// dtypes promote.
Tensor cat(const std::vector<Tensor>& tensors, std::int64_t dim = 0);
/// New memory: along a new dimension.
Tensor stack(const std::vector<Tensor>& tensors, std::int64_t dim = 0);
/// New memory: rows of `dim` chosen by a 1-d integer tensor. IndexError when one is out of range.
Tensor index_select(const Tensor& x, std::int64_t dim, const Tensor& index);
/// New memory, same layout.
Tensor clone(const Tensor& x);
/// x itself if it is dense in this format, else a dense copy.
Tensor contiguous(const Tensor& x, MemoryFormat format = MemoryFormat::contiguous);
/// x itself if nothing changes, else a copy. Gradients cross devices and floating dtypes.
Tensor to(const Tensor& x, Device device, DType dtype);

}  // namespace tapestry
