#pragma once
// Products of matrices without a record, for the operations that compute them as a part.
#include "tapestry/autograd/node.h"
#include "tapestry/autograd/op.h"
#include "tapestry/core/tensor.h"
#include "tapestry/kernels/ops/matmul.h"

namespace tapestry::autograd {

/// What a product does with its sums before it writes them (kernels::GemmArgs).
struct ProductEnd {
  Tensor bias = {};  ///< dense, with one element per column, or undefined
  kernels::Epilogue epilogue = kernels::Epilogue::none;
  Tensor aux = {};          ///< dense, with the shape of the product, or undefined
  bool accumulate = false;  ///< adds the product to y
};

/// Writes y (m, n), which is dense, = a (m, k) b (k, n). Operands whose strides the kernels cannot take are
/// copied.
void product_into(const Tensor& y, const Tensor& a, const Tensor& b, const ProductEnd& end = {});
/// Sets the gradient of `input`, a matrix, to the product a b, or adds the product to the gradient that the
/// input has already, which saves the memory and the passes of a sum.
void set_product(Backward& back, std::uint32_t input, const Tensor& a, const Tensor& b);
/// (..., k) as (rows, k): a view if the strides allow it, else a copy.
Tensor as_rows(const Tensor& t);
/// A view with the last two dimensions swapped.
Tensor transposed(const Tensor& t);
/// The sums (cols) over the rows of g (rows, cols).
Tensor column_sums(const Tensor& g);

/// Throws unless linear() takes the operands: x (..., in), weight (out, in), and bias (out) or undefined.
/// Messages call the last two by their names.
void check_linear(const Op& op, const Tensor& x, const Tensor& weight, const Tensor& bias,
                  const char* weight_name = "weight", const char* bias_name = "bias");

}  // namespace tapestry::autograd
