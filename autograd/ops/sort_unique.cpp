// unique sorts the elements and compares neighbours; unique_consecutive compares them as they are. Slices are
// compared as rows of ranks. mode looks for the longest run of equal sorted elements.
#include <algorithm>
#include <numeric>
#include <vector>

#include "tapestry/autograd/ops/creation.h"
#include "tapestry/autograd/ops/elementwise.h"
#include "tapestry/autograd/ops/index.h"
#include "tapestry/autograd/ops/internal/common.h"
#include "tapestry/autograd/ops/internal/upload.h"
#include "tapestry/autograd/ops/reduce.h"
#include "tapestry/autograd/ops/scan.h"
#include "tapestry/autograd/ops/sort.h"
#include "tapestry/autograd/ops/view.h"
#include "tapestry/core/internal/capture_state.h"
#include "tapestry/kernels/ops/sort.h"

namespace tapestry {
namespace {

const autograd::Op kUnique("unique", autograd::Grad::none, kAllDTypes);
const autograd::Op kUniqueConsecutive("unique_consecutive", autograd::Grad::none, kAllDTypes);
const autograd::Op kMode("mode", autograd::Grad::twice, kAllDTypes);

// True at the first element of each run of equal elements along the last dimension, which is not empty.
Tensor run_begins(const Tensor& x) {
  const std::int64_t n = x.size(-1);
  const Tensor begins = ones(x.sizes(), TensorOptions(DType::boolean, x.device()));
  begins.narrow(-1, 1, n - 1).copy_(ne(x.narrow(-1, 1, n - 1), x.narrow(-1, 0, n - 1)));
  return begins;
}

// True at the first of each run of equal rows of a matrix, which is not empty.
Tensor row_run_begins(const Tensor& rows) {
  const std::int64_t n = rows.size(0);
  const Tensor begins = ones({n}, TensorOptions(DType::boolean, rows.device()));
  begins.narrow(0, 1, n - 1).copy_(any(ne(rows.narrow(0, 1, n - 1), rows.narrow(0, 0, n - 1)), 1));
  return begins;
}

// The order that sorts the rows of a matrix. The elements are replaced by their ranks, which are integers for
// every dtype, and the host sorts the rows. The sort is stable.
Tensor row_order(const Tensor& rows) {
  const Tensor ranks = unique(rows, {.return_inverse = true}).inverse.to(kCPU).contiguous();
  const std::int64_t* const first = ranks.data<std::int64_t>();
  const std::int64_t length = rows.size(1);
  std::vector<std::int64_t> order(static_cast<std::size_t>(rows.size(0)));
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](std::int64_t a, std::int64_t b) {
    const std::int64_t *const one = first + a * length, *const other = first + b * length;
    return std::lexicographical_compare(one, one + length, other, other + length);
  });
  return autograd::uploaded(order, rows.device());
}

// The elements in ascending order, and their positions unless they are integers and `with_order` is false.
// Integers without their positions take half the memory on a CPU, and each key is its value.
std::pair<Tensor, Tensor> sorted_line(const Tensor& x, bool with_order) {
  const Tensor line = x.reshape({-1});
  if (with_order || !is_integral(x.dtype())) return sort(line);
  const Tensor dense = line.contiguous(), sorted = empty_like(dense);
  kernels::sort(x.device(), x.dtype(),
                {.rows = 1,
                 .n = x.numel(),
                 .k = x.numel(),
                 .descending = false,
                 .x = dense,
                 .values = sorted,
                 .indices = {}});
  return {sorted, {}};
}

Unique unique_slices(const autograd::Op& op, const Tensor& x, const UniqueOptions& options, bool sorts) {
  const int d = wrap_dim(op.name, *options.dim, x.dim());
  check<IndexError>(x.dim() > 0, "[", op.name, "] a 0-d tensor has no dimension ", *options.dim,
                    "; leave dim out");
  const std::int64_t n = x.size(d);
  for (int other = 0; other < x.dim(); ++other)
    check(other == d || x.size(other) > 0, "[", op.name, "] slices along dimension ", d, " of shape ",
          x.sizes(), " are empty; choose another dimension");
  const TensorOptions integers(DType::i64, x.device());
  Unique result;
  if (n == 0) {
    result.values = x.detach().clone();
    if (options.return_inverse) result.inverse = empty({0}, integers);
    if (options.return_counts) result.counts = empty({0}, integers);
    return result;
  }
  Tensor rows = x.detach().movedim(d, 0).reshape({n, -1});
  Tensor order;
  if (sorts) {
    order = row_order(rows);
    rows = rows.index_select(0, order);
  }
  const Tensor begins = row_run_begins(rows), first = nonzero(begins).reshape({-1});
  const std::int64_t count = first.numel();
  result.values = x.detach().index_select(d, sorts ? order.index_select(0, first) : first);
  if (options.return_counts)
    result.counts = cat({first.narrow(0, 1, count - 1), full({1}, n, integers)}) - first;
  if (options.return_inverse) {
    const Tensor group = cumsum(begins, 0) - 1;
    result.inverse = sorts ? zeros({n}, integers).scatter(0, order, group) : group;
  }
  return result;
}

}  // namespace

Unique unique(const Tensor& x, const UniqueOptions& options) {
  detail::check_defined(kUnique.name, x);
  kUnique.check_dtype(x.dtype());
  tapestry::detail::check_host_reads(kUnique.name, x);
  const NoGradGuard no_grad;
  if (options.dim) return unique_slices(kUnique, x, options, true);
  const std::int64_t n = x.numel();
  const TensorOptions integers(DType::i64, x.device());
  Unique result;
  if (n == 0) {
    result.values = empty({0}, TensorOptions(x.dtype(), x.device()));
    if (options.return_inverse) result.inverse = empty(x.sizes(), integers);
    if (options.return_counts) result.counts = empty({0}, integers);
    return result;
  }
  const auto [sorted, order] = sorted_line(x, options.return_inverse);
  const Tensor begins = run_begins(sorted);
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

Unique unique_consecutive(const Tensor& x, const UniqueOptions& options) {
  detail::check_defined(kUniqueConsecutive.name, x);
  kUniqueConsecutive.check_dtype(x.dtype());
  tapestry::detail::check_host_reads(kUniqueConsecutive.name, x);
  const NoGradGuard no_grad;
  if (options.dim) return unique_slices(kUniqueConsecutive, x, options, false);
  const std::int64_t n = x.numel();
  if (n == 0) return unique(x, options);
  const Tensor flat = x.detach().reshape({-1}), begins = run_begins(flat);
  const Tensor first = nonzero(begins).reshape({-1});
  const std::int64_t count = first.numel();
  Unique result;
  result.values = flat.index_select(0, first);
  if (options.return_counts) {
    const Tensor end = full({1}, n, TensorOptions(DType::i64, x.device()));
    result.counts = cat({first.narrow(0, 1, count - 1), end}) - first;
  }
  if (options.return_inverse) result.inverse = (cumsum(begins, 0) - 1).reshape(x.sizes());
  return result;
}
Unique Tensor::unique_consecutive() const { return tapestry::unique_consecutive(*this); }
Unique Tensor::unique_consecutive(const UniqueOptions& options) const {
  return tapestry::unique_consecutive(*this, options);
}

std::pair<Tensor, Tensor> mode(const Tensor& x, std::int64_t dim, bool keepdim) {
  detail::check_defined(kMode.name, x);
  kMode.check_dtype(x.dtype());
  const int d = wrap_dim(kMode.name, dim, x.dim());
  if (x.dim() == 0) return {x.clone(), zeros({}, TensorOptions(DType::i64, x.device()))};
  check(x.size(d) > 0, "[mode] dimension ", dim, " of shape ", x.sizes(), " is empty");
  Tensor at;
  {
    const NoGradGuard no_grad;
    const auto [sorted, order] = sort(x.detach().transpose(d, -1));
    const std::int64_t n = sorted.size(-1);
    const Tensor position = arange(n, TensorOptions(DType::i64, x.device()));
    // The length of the run so far. The first element of the greatest length ends the run of the mode, and is
    // its last occurrence, because the sort is stable.
    const Tensor begin = cummax(where(run_begins(sorted), position, Scalar(0)), -1).first;
    at = order.gather(-1, argmax(position - begin, -1, true)).transpose(d, -1);
  }
  const Tensor values = gather(x, d, at);
  return keepdim ? std::pair(values, at) : std::pair(squeeze(values, d), squeeze(at, d));
}
std::pair<Tensor, Tensor> Tensor::mode(std::int64_t dim, bool keepdim) const {
  return tapestry::mode(*this, dim, keepdim);
}

}  // namespace tapestry
