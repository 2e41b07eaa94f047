// unique sorts the elements and compares neighbours.
#include "tapestry/autograd/ops/creation.h"
#include "tapestry/autograd/ops/elementwise.h"
#include "tapestry/autograd/ops/index.h"
#include "tapestry/autograd/ops/internal/common.h"
#include "tapestry/autograd/ops/scan.h"
#include "tapestry/autograd/ops/sort.h"
#include "tapestry/autograd/ops/view.h"
#include "tapestry/kernels/ops/sort.h"

namespace tapestry {
namespace {

const autograd::Op kUnique("unique", autograd::Grad::none, kAllDTypes);

}  // namespace

Unique unique(const Tensor& x, const UniqueOptions& options) {
  detail::check_defined(kUnique.name, x);
  kUnique.check_dtype(x.dtype());
  x.check_has_elements(kUnique.name);
  const NoGradGuard no_grad;
  const std::int64_t n = x.numel();
  const TensorOptions integers(DType::i64, x.device());
  Unique result;
  if (n == 0) {
    result.values = empty({0}, TensorOptions(x.dtype(), x.device()));
    if (options.return_inverse) result.inverse = empty(x.sizes(), integers);
    if (options.return_counts) result.counts = empty({0}, integers);
    return result;
  }
  const auto [sorted, order] = sort(x.reshape({-1}));
  // True at the first of each group of equal values.
  const Tensor begins = ones({n}, TensorOptions(DType::boolean, x.device()));
  begins.narrow(0, 1, n - 1).copy_(ne(sorted.narrow(0, 1, n - 1), sorted.narrow(0, 0, n - 1)));
  const Tensor first = nonzero(begins).reshape({-1});
  const std::int64_t count = first.numel();
  result.values = sorted.index_select(0, first);
  if (options.return_counts)
    result.counts = cat({first.narrow(0, 1, count - 1), full({1}, n, integers)}) - first;
  if (options.return_inverse) {
    result.inverse = empty(x.sizes(), integers);
    const Tensor group = cumsum(begins, 0) - 1;
    kernels::put(x.device(), DType::i64,
                 {.rows = 1, .n = n, .k = n, .index = order, .x = group, .y = result.inverse});
  }
  return result;
}

Unique Tensor::unique() const { return tapestry::unique(*this); }
Unique Tensor::unique(const UniqueOptions& options) const { return tapestry::unique(*this, options); }

}  // namespace tapestry
