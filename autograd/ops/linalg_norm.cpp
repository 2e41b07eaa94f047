// Norms of vectors and matrices.
#include <cmath>
#include <limits>
#include <string_view>

#include "tapestry/autograd/internal/autocast.h"
#include "tapestry/autograd/ops/elementwise.h"
#include "tapestry/autograd/ops/internal/linalg.h"
#include "tapestry/autograd/ops/linalg.h"
#include "tapestry/autograd/ops/reduce.h"

namespace tapestry::linalg {
namespace {

using namespace autograd;

const Op kVectorNorm("linalg.vector_norm", Grad::twice, kFloats);
const Op kMatrixNorm("linalg.matrix_norm", Grad::twice, kFloats);
const Op kNorm("linalg.norm", Grad::twice, kFloats);

// The sum of powers of no elements has no negative root.
void check_reduces_some(const Op& op, const Tensor& x, double order, const Dims& dims) {
  bool empty = dims.empty() && x.numel() == 0;
  for (const std::int64_t d : dims) empty = empty || x.size(d) == 0;
  check(!empty, "[", op.name, "] the norm of order ", order, " of no elements (shape ", x.sizes(),
        ") is not defined; reduce dimensions that are not empty");
}

// The largest sum or singular value; that of none is 0.
Tensor largest(const Tensor& x, std::int64_t dim, bool keepdim) {
  return x.size(dim) == 0 ? sum(x, dim, keepdim) : amax(x, dim, keepdim);
}

}  // namespace

Order::Order(const char* name) {
  const std::string_view text(name);
  (check)(text == "fro" || text == "nuc", "[linalg.norm] the order \"", name,
          "\" does not exist; give \"fro\", \"nuc\" or a number");
  kind_ = text == "fro" ? Kind::frobenius : Kind::nuclear;
}

Tensor vector_norm(const Tensor& x, double order, const Dims& dims, bool keepdim) {
  if (const autograd::Autocast cast(kVectorNorm, x); cast) return vector_norm(cast(x), order, dims, keepdim);
  tapestry::detail::check_defined(kVectorNorm.name, x);
  kVectorNorm.check_dtype(x.dtype());
  check(!std::isnan(order), "[linalg.vector_norm] the order is NaN; give a number");
  if (order >= 0) return tapestry::norm(x, order, dims, keepdim);
  check_reduces_some(kVectorNorm, x, order, dims);
  if (std::isinf(order)) return amin(abs(x), dims, keepdim);
  return pow(sum(pow(abs(x), order), dims, keepdim), 1 / order);
}

Tensor matrix_norm(const Tensor& x, const Order& order, const Dims& dims, bool keepdim) {
  if (const autograd::Autocast cast(kMatrixNorm, x); cast) return matrix_norm(cast(x), order, dims, keepdim);
  check_matrices(kMatrixNorm, x);
  check(dims.size() == 2, "[linalg.matrix_norm] dims are ", dims,
        "; give the two dimensions of the matrices");
  const int rows = wrap_dim(kMatrixNorm.name, dims[0], x.dim()),
            columns = wrap_dim(kMatrixNorm.name, dims[1], x.dim());
  check(rows != columns, "[linalg.matrix_norm] both dimensions are ", rows, "; give two different ones");
  const bool spectral = order.is_number() && std::abs(order.number()) == 2;
  if (order.is_nuclear() || spectral) {
    check<TypeError>(contains(kFullFloats, x.dtype()), "[linalg.matrix_norm] singular values of a ",
                     x.dtype(), " tensor; convert it to f32 or f64");
    const Tensor s = svdvals(movedim(x, {rows, columns}, {-2, -1}));
    const Tensor y = order.is_nuclear()   ? sum(s, -1)
                     : order.number() > 0 ? largest(s, -1, false)
                                          : amin(s, -1);
    if (!keepdim) return y;
    const int first = std::min(rows, columns), second = std::max(rows, columns);
    return unsqueeze(unsqueeze(y, first), second);
  }
  if (!order.is_number()) return tapestry::norm(x, 2, {rows, columns}, keepdim);
  const double p = order.number();
  check(std::abs(p) == 1 || std::isinf(p), "[linalg.matrix_norm] the order is ", p,
        "; give 1, -1, 2, -2, an infinity, \"fro\" or \"nuc\"");
  const int summed = std::abs(p) == 1 ? rows : columns;
  int other = summed == rows ? columns : rows;
  if (!keepdim && other > summed) --other;
  const Tensor sums = sum(abs(x), summed, keepdim);
  return p > 0 ? largest(sums, other, keepdim) : amin(sums, other, keepdim);
}

Tensor norm(const Tensor& x, const std::optional<Order>& order, const Dims& dims, bool keepdim) {
  tapestry::detail::check_defined(kNorm.name, x);
  kNorm.check_dtype(x.dtype());
  if (!order && dims.size() != 2) return vector_norm(x, 2, dims, keepdim);
  const int size = dims.empty() ? x.dim() : dims.size();
  check(size == 1 || size == 2, "[linalg.norm] an order needs one or two dimensions, but there are ", size,
        "; give dims, or omit the order");
  if (size == 2) return matrix_norm(x, order.value_or("fro"), dims.empty() ? Dims{-2, -1} : dims, keepdim);
  check(order->is_number(),
        "[linalg.norm] \"fro\" and \"nuc\" are norms of matrices, but the input has shape ", x.sizes(),
        "; give a number");
  return vector_norm(x, order->number(), dims, keepdim);
}

}  // namespace tapestry::linalg
