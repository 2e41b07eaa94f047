#include "tapestry/autograd/ops/matmul.h"

#include <algorithm>

#include "tapestry/autograd/internal/autocast.h"
#include "tapestry/autograd/internal/graph_task.h"
#include "tapestry/autograd/ops/internal/common.h"
#include "tapestry/autograd/ops/internal/matmul.h"
#include "tapestry/autograd/ops/reduce.h"
#include "tapestry/autograd/ops/view.h"
#include "tapestry/autograd/tape.h"
#include "tapestry/kernels/ops/matmul.h"

namespace tapestry {
namespace {

using autograd::as_rows;
using autograd::Backward;
using autograd::Grad;
using autograd::Op;
using autograd::product_into;
using autograd::reduce_to;
using autograd::save_if;
using autograd::transposed;
using detail::raw_view;
using kernels::GemmArgs;
using kernels::MatrixStrides;

const Op kMatmul("matmul", Grad::twice, kFloats);
const Op kLinear("linear", Grad::twice, kFloats);

// ---- unrecorded products ----
// Writes the row and column strides of t's matrices to `out`, as the gemm kernels require them. Returns false
// if t must be copied first.
bool matrix_strides(const Tensor& t, MatrixStrides& out) {
  const int n = t.dim();
  const std::int64_t rows = t.sizes()[n - 2], cols = t.sizes()[n - 1];
  const std::int64_t row = t.strides()[n - 2], col = t.strides()[n - 1];
  const auto pitch = [](std::int64_t stride, std::int64_t lines, std::int64_t length) {
    return lines <= 1 ? std::max<std::int64_t>(length, 1)
                      : stride;  // a single row or column never uses its stride
  };
  if (col == 1 || cols <= 1) {
    out = {pitch(row, rows, cols), 1};
    if (out.row >= std::max<std::int64_t>(cols, 1)) return true;
  }
  if (row == 1 || rows <= 1) {
    out = {1, pitch(col, cols, rows)};
    if (out.col >= std::max<std::int64_t>(rows, 1)) return true;
  }
  return false;
}

Tensor as_operand(const Tensor& t, MatrixStrides& strides) {
  if (matrix_strides(t, strides)) return t;
  Tensor copy = autograd::raw_contiguous(t);
  matrix_strides(copy, strides);
  return copy;
}

}  // namespace

Tensor autograd::transposed(const Tensor& t) {
  Shape sizes = t.sizes(), strides = t.strides();
  const int n = sizes.size();
  std::swap(sizes[n - 1], sizes[n - 2]);
  std::swap(strides[n - 1], strides[n - 2]);
  return raw_view(t, sizes, strides, t.storage_offset());
}

Tensor autograd::as_rows(const Tensor& t) {
  const int n = t.dim();
  if (n == 2) return t;
  const std::int64_t k = t.sizes()[n - 1];
  std::int64_t rows = 1, stride = 0;
  bool foldable = true;
  for (int d = n - 1; d-- > 0;) {
    const std::int64_t size = t.sizes()[d];
    if (size == 1) continue;
    if (rows == 1) stride = t.strides()[d];
    else foldable = foldable && t.strides()[d] == stride * rows;
    rows *= size;
  }
  if (rows == 1) stride = k;
  if (foldable) return raw_view(t, {rows, k}, {stride, t.strides()[n - 1]}, t.storage_offset());
  const Tensor copy = autograd::raw_contiguous(t);
  return raw_view(copy, {rows, k}, {k, 1}, copy.storage_offset());
}

void autograd::product_into(const Tensor& y, const Tensor& a, const Tensor& b, const ProductEnd& end) {
  GemmArgs g;
  const Tensor left = as_operand(a, g.a_strides), right = as_operand(b, g.b_strides);
  g.m = a.sizes()[0], g.n = b.sizes()[1], g.k = a.sizes()[1];
  g.a = left, g.b = right, g.c = y;
  g.c_row = std::max<std::int64_t>(g.n, 1);
  g.bias = end.bias;
  g.epilogue = end.epilogue;
  g.aux = end.aux;
  g.row_sums = end.row_sums;
  g.accumulate = end.accumulate;
  kernels::gemm(y.device(), y.dtype(), g);
}

void autograd::set_product(Backward& back, std::uint32_t input, const Tensor& a, const Tensor& b,
                           const Tensor& row_sums) {
  if (const Tensor sum = GraphTask::current()->sum_to_extend(input, {&a, &b}); sum.defined())
    return product_into(sum, a, b, {.accumulate = true, .row_sums = row_sums});
  const Tensor y = empty({a.sizes()[0], b.sizes()[1]}, {a.dtype(), a.device()});
  product_into(y, a, b, {.row_sums = row_sums});
  back.set(input, y);
}

Tensor autograd::column_sums(const Tensor& g) {
  const Tensor sums = empty({g.sizes()[1]}, {g.dtype(), g.device()}), dense = raw_contiguous(g);
  kernels::column_sum(g.device(), g.dtype(),
                      {.rows = g.sizes()[0], .cols = g.sizes()[1], .x = dense, .y = sums});
  return sums;
}

void autograd::check_linear(const Op& op, const Tensor& x, const Tensor& weight, const Tensor& bias,
                            const char* weight_name, const char* bias_name) {
  tapestry::detail::check_defined(op.name, x);
  tapestry::detail::check_defined(op.name, weight, weight_name);
  op.check_dtype(x.dtype());
  check_matches(op.name, x, weight, weight_name);
  check_matches(op.name, x, bias, bias_name);
  check(weight.dim() == 2, "[", op.name, "] ", weight_name, " has shape ", weight.sizes(),
        ", expected (out_features, in_features)");
  const std::int64_t in = weight.sizes()[1];
  check(x.dim() >= 1 && x.size(-1) == in, "[", op.name, "] input of shape ", x.sizes(), " does not fit ",
        weight_name, " ", weight.sizes(), ": expected (..., ", in, ")");
  check_vector(op.name, bias, bias_name, weight.sizes()[0]);
}

namespace {

bool one_matrix(const Shape& sizes) {
  return std::all_of(sizes.begin(), sizes.end() - 2, [](std::int64_t size) { return size == 1; });
}

// The only matrix of a tensor, as a 2-d view.
Tensor only_matrix(const Tensor& t) {
  const int n = t.dim();
  if (n == 2) return t;
  return raw_view(t, {t.sizes()[n - 2], t.sizes()[n - 1]}, {t.strides()[n - 2], t.strides()[n - 1]},
                  t.storage_offset());
}

// The product of (..., m, k) and (..., k, n), whose batch dimensions broadcast.
Tensor product(const Tensor& a, const Tensor& b) {
  const int na = a.dim(), nb = b.dim();
  const Shape batch =
      broadcast_shapes("matmul", Shape(a.sizes().begin(), na - 2), Shape(b.sizes().begin(), nb - 2));
  Shape sizes = batch;
  sizes.push_back(a.sizes()[na - 2]);
  sizes.push_back(b.sizes()[nb - 1]);
  const Tensor y = empty(sizes, {a.dtype(), a.device()});
  if (one_matrix(b.sizes()) &&
      y.numel() > 0) {  // b is one matrix, so all matrices of a are stacked into one product
    product_into(y, as_rows(a), only_matrix(b));
    return y;
  }

  GemmArgs g;
  const Tensor left = as_operand(a, g.a_strides), right = as_operand(b, g.b_strides);
  g.m = a.sizes()[na - 2], g.n = b.sizes()[nb - 1], g.k = a.sizes()[na - 1];
  g.a = left, g.b = right, g.c = y;
  g.c_row = std::max<std::int64_t>(g.n, 1);
  g.batch_ndim = batch.size();
  const auto batch_stride = [&](const Tensor& t, int d) -> std::int64_t {
    d -= batch.size() - (t.dim() - 2);
    return d < 0 || t.sizes()[d] == 1 ? 0 : t.strides()[d];
  };
  for (int d = 0; d < batch.size(); ++d) {
    g.batch_sizes[d] = batch[d];
    g.a_batch[d] = batch_stride(left, d);
    g.b_batch[d] = batch_stride(right, d);
    g.c_batch[d] = y.strides()[d];
  }
  kernels::gemm(y.device(), y.dtype(), g);
  return y;
}

// A vector becomes a row on the left of a product, and a column on the right.
Tensor left_matrix(const Tensor& t) {
  return t.dim() == 1 ? raw_view(t, {1, t.sizes()[0]}, {t.sizes()[0], t.strides()[0]}, t.storage_offset())
                      : t;
}
Tensor right_matrix(const Tensor& t) {
  return t.dim() == 1 ? raw_view(t, {t.sizes()[0], 1}, {t.strides()[0], 1}, t.storage_offset()) : t;
}
// The sizes of an operand as a matrix: a vector gets a dimension of size 1 at `position`.
Shape matrix_sizes(Shape sizes, int position) {
  if (sizes.size() == 1) sizes.insert(position, 1);
  return sizes;
}
Tensor reshaped(const Tensor& dense, const Shape& sizes) {
  return raw_view(dense, sizes, contiguous_strides(sizes), dense.storage_offset());
}

}  // namespace

Tensor matmul(const Tensor& a, const Tensor& b) {
  if (const autograd::Autocast cast(kMatmul, a, b); cast) return matmul(cast(a), cast(b));
  detail::check_defined(kMatmul.name, a, "left operand");
  detail::check_defined(kMatmul.name, b, "right operand");
  kMatmul.check_dtype(a.dtype());
  check<TypeError>(a.dtype() == b.dtype(), "[matmul] dtypes ", a.dtype(), " and ", b.dtype(),
                   " differ; convert one with to(dtype)");
  check<DeviceError>(a.device() == b.device(), "[matmul] operands are on ", a.device(), " and ", b.device(),
                     "; move one with to(device)");
  check(a.dim() >= 1 && b.dim() >= 1, "[matmul] shapes ", a.sizes(), " and ", b.sizes(),
        "; a 0-d operand has no product of matrices: multiply with *");
  const Tensor left = left_matrix(a), right = right_matrix(b);
  check(left.size(-1) == right.size(-2), "[matmul] shapes ", a.sizes(), " and ", b.sizes(),
        " do not fit: ", left.size(-1), " columns on the left, ", right.size(-2),
        " rows on the right; they must be equal");
  for (int d = 3; d <= std::min(left.dim(), right.dim()); ++d)
    check(left.size(-d) == right.size(-d) || left.size(-d) == 1 || right.size(-d) == 1,
          "[matmul] the batches of ", a.sizes(), " and ", b.sizes(), " do not broadcast: ", left.size(-d),
          " against ", right.size(-d));
  Tensor y = product(left, right);
  const Shape full = y.sizes();
  Shape sizes = full;
  if (b.dim() == 1) sizes.erase(sizes.size() - 1);
  if (a.dim() == 1) sizes.erase(sizes.size() - 1 - (b.dim() != 1));
  if (sizes.size() != full.size()) y = reshaped(y, sizes);

  if (autograd::recording(a, b))
    autograd::record(
        kMatmul, y, {&a, &b},
        [a = save_if(b, a), b = save_if(a, b), a_sizes = a.sizes(), b_sizes = b.sizes(),
         full](Backward& back) {
          if (back.create_graph()) {
            const Tensor g = reshape(back.grad(), full);
            const auto as = [&](const Tensor& dx, const Shape& matrix, const Shape& sizes) {
              return reshape(reduce_to(dx, matrix, g.dtype()), sizes);
            };
            const Shape m = matrix_sizes(a_sizes, 0), n = matrix_sizes(b_sizes, b_sizes.size());
            if (back.needs(0))
              back.set(0, as(matmul(g, transpose(reshape(back.saved(b), n), -2, -1)), m, a_sizes));
            if (back.needs(1))
              back.set(1, as(matmul(transpose(reshape(back.saved(a), m), -2, -1), g), n, b_sizes));
            return;
          }
          Tensor g = back.grad();
          if (g.dim() != full.size()) g = reshaped(autograd::raw_contiguous(g), full);
          if (back.needs(0)) {
            Shape sizes = a_sizes;
            if (sizes.size() == 1) sizes.insert(0, 1);
            const Tensor right = right_matrix(back.saved(b));
            back.set(0, reshaped(reduce_to(product(g, transposed(right)), sizes, g.dtype()), a_sizes));
          }
          if (back.needs(1)) {
            Shape sizes = b_sizes;
            if (sizes.size() == 1) sizes.push_back(1);
            const Tensor left = left_matrix(back.saved(a));
            Tensor grad;
            // If b is one matrix, its gradient is a sum over the batch. One product of the stacked rows
            // computes it.
            if (b_sizes.size() == 2 && g.numel() > 0 && left.numel() > 0)
              return autograd::set_product(back, 1, transposed(as_rows(left)), as_rows(g));
            if (one_matrix(sizes) && g.numel() > 0 && left.numel() > 0) {
              grad = empty(sizes, {g.dtype(), g.device()});
              product_into(grad, transposed(as_rows(left)), as_rows(g));
            } else {
              grad = reduce_to(product(transposed(left), g), sizes, g.dtype());
            }
            back.set(1, reshaped(grad, b_sizes));
          }
        });
  return y;
}

Tensor linear(const Tensor& x, const Tensor& weight, const Tensor& bias) {
  if (const autograd::Autocast cast(kLinear, x, weight, bias); cast)
    return linear(cast(x), cast(weight), cast(bias));
  autograd::check_linear(kLinear, x, weight, bias);
  const std::int64_t in = weight.sizes()[1], out = weight.sizes()[0];
  Shape sizes = x.sizes();
  sizes.back() = out;
  const Tensor y = empty(sizes, {x.dtype(), x.device()});
  const Tensor offset = autograd::contiguous_or_undefined(bias);
  product_into(y, as_rows(x), transposed(weight), {.bias = offset});

  if (autograd::recording(x, weight, bias))
    autograd::record(kLinear, y, {&x, &weight, &bias},
                     [x = save_if(weight, x), weight = save_if(x, weight), in, out](Backward& b) {
                       const Tensor& grad = b.grad();
                       if (b.create_graph()) {
                         const std::int64_t rows = Shape(grad.sizes().begin(), grad.dim() - 1).numel();
                         const Tensor g = reshape(grad, {rows, out});
                         if (b.needs(0)) b.set(0, matmul(grad, b.saved(weight)));
                         if (b.needs(1))
                           b.set(1, matmul(transpose(g, 0, 1), reshape(b.saved(x), {rows, in})));
                         if (b.needs(2)) b.set(2, sum(g, 0));
                         return;
                       }
                       const Tensor g = as_rows(grad);
                       const TensorOptions options(g.dtype(), g.device());
                       if (b.needs(0)) {
                         Shape sizes = grad.sizes();
                         sizes.back() = in;
                         const Tensor dx = empty(sizes, options);
                         const Tensor w = b.saved(weight);
                         product_into(dx, g, w, autograd::end_of_input_gradient(b, 0, 1, g, w, [&] {
                                        return b.saved(x);
                                      }));
                         b.set(0, dx);
                       }
                       autograd::set_weight_and_bias(b, 1, 2, g, [&] { return b.saved(x); });
                     });
  return y;
}

Tensor Tensor::matmul(const Tensor& other) const { return tapestry::matmul(*this, other); }

}  // namespace tapestry
