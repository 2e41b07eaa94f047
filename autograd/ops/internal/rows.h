#pragma once
// Presents one dimension of a tensor as dense rows, for kernels that take (rows, n). If later
// dimensions have more than one element, the rows are a transposed copy.
#include "tapestry/autograd/op.h"
#include "tapestry/autograd/ops/creation.h"
#include "tapestry/autograd/ops/internal/common.h"
#include "tapestry/autograd/ops/view.h"

namespace tapestry::autograd {

/// Knows where the rows are. It does not hold the tensor, so that backward can capture it.
class RowLayout {
 public:
  /// Throws ValueError if x is undefined, TypeError for a dtype that op does not take, and IndexError if the
  /// dimension does not exist. A 0-d tensor is one row of one element.
  RowLayout(const Op& op, const Tensor& x, std::int64_t dim) {
    tapestry::detail::check_defined(op.name, x);
    op.check_dtype(x.dtype());
    dim_ = wrap_dim(op.name, dim, x.dim());
    sizes_ = x.sizes();
    std::int64_t after = 1;
    for (int i = 0; i < x.dim(); ++i) (i == dim_ ? n : rows) *= sizes_[i];
    for (int i = dim_ + 1; i < x.dim(); ++i) after *= sizes_[i];
    moves_ = after != 1;
  }

  std::int64_t rows = 1, n = 1;  ///< number of rows, and of elements per row
  int dim() const { return dim_; }

  /// Returns x as dense rows, without a record on the tape. x has sizes_of(k) for any k.
  Tensor rows_of(const Tensor& x) const {
    const NoGradGuard no_grad;
    return moves_ ? x.transpose(dim_, -1).contiguous() : x.contiguous();
  }
  /// A new, uninitialised tensor in the layout of rows_of().
  Tensor empty_rows(std::int64_t k, DType dtype, Device device) const {
    Shape sizes = sizes_of(k);
    if (moves_) std::swap(sizes[dim_], sizes.back());
    return empty(sizes, TensorOptions(dtype, device));
  }
  /// Converts a tensor from the layout of rows_of() back, without a record on the tape.
  Tensor restored(const Tensor& y) const {
    const NoGradGuard no_grad;
    return moves_ ? y.transpose(dim_, -1).contiguous() : y;
  }
  /// Does the same and gives the result another shape.
  Tensor restored(const Tensor& y, const Shape& sizes) const {
    const NoGradGuard no_grad;
    return restored(y).view(sizes);
  }
  /// The tensor's shape if its rows had k elements.
  Shape sizes_of(std::int64_t k) const {
    Shape sizes = sizes_;
    if (!sizes.empty()) sizes[dim_] = k;
    return sizes;
  }

 private:
  int dim_ = 0;
  Shape sizes_;
  bool moves_ = false;
};

}  // namespace tapestry::autograd
