#include "tapestry/autograd/ops/search.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "tapestry/autograd/ops/creation.h"
#include "tapestry/autograd/ops/internal/common.h"
#include "tapestry/autograd/ops/reduce.h"
#include "tapestry/core/internal/capture_state.h"
#include "tapestry/kernels/ops/index.h"
#include "tapestry/kernels/ops/search.h"

namespace tapestry {
namespace {

using autograd::Grad;
using autograd::Op;

const Op kSearchsorted("searchsorted", Grad::none, kNumbers);
const Op kBucketize("bucketize", Grad::none, kNumbers);
const Op kBincount("bincount", Grad::none, kIntegers);

Tensor search(const Tensor& sorted, const Tensor& values, bool right, bool out_int32, const Tensor& sorter) {
  const NoGradGuard no_grad;
  const DType common = autograd::promoted(sorted, values),
              dtype = is_floating(common) ? autograd::accumulation_dtype(common) : DType::i64;
  const Tensor order = autograd::contiguous_or_undefined(sorter),
               row = autograd::converted(sorted.contiguous(), dtype),
               in = autograd::converted(values.contiguous(), dtype);
  const Tensor y = empty(values.sizes(), TensorOptions(DType::i64, values.device()));
  kernels::searchsorted(values.device(), dtype,
                        {.count = values.numel(),
                         .per_row = sorted.dim() > 1 ? values.size(-1) : 0,
                         .n = sorted.size(-1),
                         .right = right,
                         .sorted = row,
                         .sorter = order,
                         .values = in,
                         .out = y});
  return out_int32 ? y.to(DType::i32) : y;
}

// Returns `value` as a 0-d tensor. A real number gets the dtype of `sorted`, so that it is compared in that
// dtype.
Tensor number_for(const Tensor& sorted, const Scalar& value) {
  const DType real = is_floating(sorted.dtype()) ? sorted.dtype() : DType::f32;
  return scalar_tensor(value, TensorOptions(value.is_real() ? real : DType::i64, sorted.device()));
}

}  // namespace

Tensor searchsorted(const Tensor& sorted_sequence, const Tensor& values, const SearchsortedOptions& options) {
  const Op& op = kSearchsorted;
  const Tensor& sorted = sorted_sequence;
  autograd::check_operands(op, sorted, values);
  op.check_dtype(sorted.dtype());
  op.check_dtype(values.dtype());
  check(sorted.dim() > 0, "[searchsorted] the sequence is 0-d; pass at least one dimension");
  if (sorted.dim() > 1) {
    bool fits = values.dim() == sorted.dim();
    for (int i = 0; fits && i + 1 < sorted.dim(); ++i) fits = sorted.size(i) == values.size(i);
    check(fits, "[searchsorted] the sequence has shape ", sorted.sizes(), ", the values ", values.sizes(),
          "; all sizes except the last must be equal, or the sequence 1-d");
  }
  bool right = options.right;
  if (options.side) {
    check(*options.side == "left" || *options.side == "right", "[searchsorted] side is \"", *options.side,
          "\"; give left or right");
    check(!right || *options.side == "right",
          "[searchsorted] side is \"left\" but right is true; give one of them");
    right = *options.side == "right";
  }
  if (const Tensor& sorter = options.sorter; sorter.defined()) {
    check<TypeError>(sorter.dtype() == DType::i64, "[searchsorted] sorter is ", sorter.dtype(),
                     "; pass int64, as argsort() returns");
    check(sorter.sizes() == sorted.sizes(), "[searchsorted] sorter has shape ", sorter.sizes(),
          ", the sequence ", sorted.sizes(), "; pass one index per element");
    check<DeviceError>(sorter.device() == sorted.device(), "[searchsorted] sorter is on ", sorter.device(),
                       ", the sequence on ", sorted.device(), "; move one of them with .to()");
    if (sorter.numel() > 0 && !sorter.device().is_meta()) {
      tapestry::detail::check_host_reads("searchsorted", sorter);
      const auto lowest = amin(sorter).item<std::int64_t>(), highest = amax(sorter).item<std::int64_t>();
      check<IndexError>(lowest >= 0 && highest < sorted.size(-1), "[searchsorted] sorter has indices from ",
                        lowest, " to ", highest, "; they must be in [0, ", sorted.size(-1), ")");
    }
  }
  return search(sorted, values, right, options.out_int32, options.sorter);
}
Tensor searchsorted(const Tensor& sorted_sequence, const Scalar& value, const SearchsortedOptions& options) {
  detail::check_defined(kSearchsorted.name, sorted_sequence);
  return searchsorted(sorted_sequence, number_for(sorted_sequence, value), options);
}

Tensor bucketize(const Tensor& values, const Tensor& boundaries, bool out_int32, bool right) {
  autograd::check_operands(kBucketize, values, boundaries);
  kBucketize.check_dtype(values.dtype());
  kBucketize.check_dtype(boundaries.dtype());
  check(boundaries.dim() == 1, "[bucketize] boundaries have shape ", boundaries.sizes(), "; pass a 1-d list");
  return search(boundaries, values, right, out_int32, Tensor());
}

Tensor bincount(const Tensor& x, const Tensor& weights, std::int64_t minlength) {
  detail::check_defined(kBincount.name, x);
  kBincount.check_dtype(x.dtype());
  check(x.dim() == 1, "[bincount] the input has shape ", x.sizes(), "; pass a 1-d list of integers");
  constexpr std::int64_t kMostBins = std::numeric_limits<std::int64_t>::max() / 8;  // of 8 bytes
  check(minlength >= 0 && minlength <= kMostBins, "[bincount] minlength is ", minlength,
        "; give 0 or more, and no ", "more bins than fit in memory");
  const NoGradGuard no_grad;
  std::int64_t bins = minlength;
  tapestry::detail::check_host_reads(kBincount.name, x);  // the result's shape depends on them
  if (x.numel() > 0) {
    const auto lowest = amin(x).item<std::int64_t>(), highest = amax(x).item<std::int64_t>();
    check(lowest >= 0, "[bincount] the input has ", lowest, "; all integers must be at least 0");
    check(highest < kMostBins, "[bincount] the input has ", highest,
          ", which needs more bins than fit in memory; pass smaller integers");
    bins = std::max(bins, highest + 1);
  }
  const Tensor in = autograd::converted(x.contiguous(), DType::i64);
  if (!weights.defined()) {
    const Tensor y = zeros({bins}, TensorOptions(DType::i64, x.device()));
    kernels::bincount(x.device(), DType::i64, {.n = x.numel(), .bins = bins, .x = in, .out = y});
    return y;
  }
  check<DeviceError>(weights.device() == x.device(), "[bincount] the weights are on ", weights.device(),
                     ", the input on ", x.device(), "; move one of them with .to()");
  check(weights.sizes() == x.sizes(), "[bincount] the weights have shape ", weights.sizes(), ", the input ",
        x.sizes(), "; pass one weight per integer");
  const DType dtype = weights.dtype() == DType::f32 ? DType::f32 : DType::f64;
  const Tensor y = zeros({bins}, TensorOptions(dtype, x.device()));
  kernels::index_add(x.device(), dtype,
                     {.outer = 1,
                      .rows = bins,
                      .count = x.numel(),
                      .inner = 1,
                      .index = in,
                      .dy = autograd::converted(weights.contiguous(), dtype),
                      .dx = y,
                      .first_bad = nullptr});
  return y;
}
Tensor Tensor::bincount(const Tensor& weights, std::int64_t minlength) const {
  return tapestry::bincount(*this, weights, minlength);
}

Tensor histc(const Tensor& x, std::int64_t bins, double low, double high) {
  detail::check_defined("histc", x);
  check<TypeError>(is_floating(x.dtype()), "[histc] does not take ", x.dtype(),
                   "; convert it to a floating dtype");
  check(bins > 0, "[histc] bins is ", bins, "; give 1 or more");
  const NoGradGuard no_grad;
  const DType dtype = autograd::accumulation_dtype(x.dtype());
  const Tensor all = x.detach().reshape(-1).to(dtype);
  if (low == high && all.numel() > 0) {
    tapestry::detail::check_host_reads("histc", x);
    low = amin(all).item();
    high = amax(all).item();
  }
  check(std::isfinite(low) && std::isfinite(high) && low <= high, "[histc] the range is ", low, " to ", high,
        "; give finite bounds in ascending order");
  if (low == high) {
    low -= 1;
    high += 1;
  }
  const Tensor edges = linspace(low, high, bins + 1, {dtype, x.device()});
  const Tensor inside = all.masked_select(all.ge(edges[0]).logical_and(all.le(edges[bins])));
  const Tensor index = bucketize(inside, edges, false, true).sub(1).clamp({}, bins - 1);
  return bincount(index, {}, bins).to(x.dtype());
}

Tensor Tensor::histc(std::int64_t bins, double low, double high) const {
  return tapestry::histc(*this, bins, low, high);
}

}  // namespace tapestry
