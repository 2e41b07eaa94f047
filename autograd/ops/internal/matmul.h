#pragma once
// Products of matrices without a record, for the operations that compute them as a part.
#include "tapestry/autograd/internal/left_out.h"
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
  Tensor row_sums = {};     ///< (m), receives the sums of a's rows; or undefined. Only if n > 0.
};

/// Writes y (m, n), which is dense, = a (m, k) b (k, n). Operands whose strides the kernels cannot take are
/// copied.
void product_into(const Tensor& y, const Tensor& a, const Tensor& b, const ProductEnd& end = {});
/// Sets the gradient of `input`, a matrix, to the product a b, or adds the product to the gradient that the
/// input has already, which saves the memory and the passes of a sum. `row_sums` as in ProductEnd.
void set_product(Backward& back, std::uint32_t input, const Tensor& a, const Tensor& b,
                 const Tensor& row_sums = {});
/// (..., k) as (rows, k): a view if the strides allow it, else a copy.
Tensor as_rows(const Tensor& t);
/// A view with the last two dimensions swapped.
Tensor transposed(const Tensor& t);
/// The sums (cols) over the rows of g (rows, cols).
Tensor column_sums(const Tensor& g);

/// In the backward of a linear layer without create_graph: sets the gradients of input `weight`, which is g^T
/// x, and of input `bias`, the sums over the rows of g, if they are needed. g is (rows, out). x() gives the
/// layer's input (..., in). If both are needed, one product computes them.
template <class X>
void set_weight_and_bias(Backward& b, std::uint32_t weight, std::uint32_t bias, const Tensor& g, const X& x) {
  Tensor sums;
  if (b.needs(weight)) {
    const Tensor rows = as_rows(x());
    if (b.needs(bias) && rows.size(1) > 0) sums = empty({g.size(1)}, {g.dtype(), g.device()});
    set_product(b, weight, transposed(g), rows, sums);
  }
  if (b.needs(bias)) b.set(bias, sums.defined() ? sums : column_sums(g));
}

/// In the backward of a linear layer without create_graph: the end of the product that computes the gradient
/// of the layer's input, which is b's input `input`. If the layer's input is the result of relu, the product
/// may multiply by relu's derivative. x() gives the layer's input, if it was saved.
template <class X>
ProductEnd end_of_input_gradient(const Backward& b, std::uint32_t input, std::uint32_t weight,
                                 const Tensor& g, const Tensor& w, const X& x) {
  // cuBLASLt cannot do it. A large product gains more from that library than from a launch less.
  constexpr double kSmall = 1 << 28;
  const double work = static_cast<double>(g.numel()) * static_cast<double>(w.size(1));  // of multiplications
  if (!g.device().is_cuda() || work > kSmall || !b.needs(weight)) return {};
  const Tensor result = x();
  if (!result.is_contiguous() || !masks_gradient(input)) return {};
  return {.epilogue = kernels::Epilogue::relu_backward, .aux = result};
}

/// Throws unless linear() takes the operands: x (..., in), weight (out, in), and bias (out) or undefined.
/// Messages call the last two by their names.
void check_linear(const Op& op, const Tensor& x, const Tensor& weight, const Tensor& bias,
                  const char* weight_name = "weight", const char* bias_name = "bias");

}  // namespace tapestry::autograd
