// Operations with one index per element: gather, scatter and the scatters that combine.
#include <limits>
#include <string_view>

#include "tapestry/autograd/internal/autocast.h"
#include "tapestry/autograd/internal/record_observer.h"
#include "tapestry/autograd/ops/arithmetic.h"
#include "tapestry/autograd/ops/compare.h"
#include "tapestry/autograd/ops/composite.h"
#include "tapestry/autograd/ops/creation.h"
#include "tapestry/autograd/ops/index.h"
#include "tapestry/autograd/ops/internal/common.h"
#include "tapestry/autograd/ops/internal/indexed.h"
#include "tapestry/autograd/ops/reduce.h"
#include "tapestry/autograd/ops/view.h"
#include "tapestry/core/internal/capture_state.h"
#include "tapestry/kernels/ops/copy.h"

namespace tapestry {

using namespace autograd;  // NOLINT: this file is autograd's

namespace {

using kernels::Combine;

const Op kGather{"gather", Grad::twice, kAllDTypes};
const Op kScatter{"scatter", Grad::twice, kAllDTypes};
const Op kScatterAdd{"scatter_add", Grad::twice, kAllDTypes};
const Op kScatterReduce{"scatter_reduce", Grad::twice, kAllDTypes};

// A 0-d shape counts as [1].
Shape at_least_1d(const Shape& sizes) { return sizes.empty() ? Shape(1) : sizes; }

// Selects the element of each index.
Selection elements(const Op& op, const Tensor& x, std::int64_t dim, const Tensor& index) {
  const Tensor i64 = checked_index(op.name, x, index);
  const int d = wrap_dim(op.name, dim, x.dim());
  const Shape sizes = at_least_1d(index.sizes()), of = at_least_1d(x.sizes());
  if (index.numel() > 0) {
    check(sizes.size() == of.size(), "[", op.name, "] index has shape ", index.sizes(), " and the tensor ",
          x.sizes(), "; both need the same number of dimensions");
    for (int i = 0; i < of.size(); ++i)
      check(i == d || sizes[i] <= of[i], "[", op.name, "] index has shape ", index.sizes(),
            ", which is larger than the tensor's ", x.sizes(), " in dimension ", i, "; only dimension ", d,
            " may be larger");
  }
  Selection s;
  s.sizes = sizes;
  for (int i = 0; i < sizes.size(); ++i) s.dims.push_back(i == d ? -1 : i);
  const Shape strides = index.dim() == 0 ? Shape(0) : i64.strides();
  s.index.push_back({tapestry::detail::raw_view(i64, sizes, strides, i64.storage_offset()), d});
  return s;
}

// Checks `src` and returns its part that belongs to the index.
Tensor source_for(const Op& op, const Tensor& x, const Selection& s, const Tensor& src) {
  check_values(op.name, x, src, "src");
  if (s.sizes.numel() == 0) return src;
  const Shape sizes = at_least_1d(src.sizes());
  check(sizes.size() == s.sizes.size(), "[", op.name, "] src has shape ", src.sizes(), " and the index ",
        s.sizes, "; both need the same number of dimensions");
  Tensor part = src;
  for (int i = 0; i < sizes.size(); ++i) {
    check(sizes[i] >= s.sizes[i], "[", op.name, "] src has shape ", src.sizes(),
          ", which is smaller than the index's ", s.sizes, " in dimension ", i,
          "; give one element per index");
    if (sizes[i] > s.sizes[i]) part = narrow(part, i, 0, s.sizes[i]);
  }
  return part;
}

// ---- scatter_reduce

enum class Reduce { sum, prod, mean, amax, amin };

Reduce reduce_from(std::string_view name) {
  constexpr std::string_view names[] = {"sum", "prod", "mean", "amax", "amin"};
  for (int i = 0; i < 5; ++i)
    if (name == names[i]) return static_cast<Reduce>(i);
  fail("[scatter_reduce] reduce is '", name, "'; choose sum, prod, mean, amax or amin");
}
Combine combine_of(Reduce r) {
  return r == Reduce::prod   ? Combine::product
         : r == Reduce::amax ? Combine::maximum
         : r == Reduce::amin ? Combine::minimum
                             : Combine::sum;
}
// The number that leaves every other number as it is.
Scalar identity_of(Reduce r, DType dtype) {
  if (r == Reduce::sum || r == Reduce::mean) return 0;
  if (r == Reduce::prod) return 1;
  const bool lowest = r == Reduce::amax;
  if (is_floating(dtype))
    return lowest ? -std::numeric_limits<double>::infinity() : std::numeric_limits<double>::infinity();
  if (dtype == DType::boolean) return !lowest;
  const IntegerRange range = integer_range(dtype);
  return lowest ? range.lowest : range.highest;
}

DType combining_dtype(DType t) { return is_floating(t) ? accumulation_dtype(t) : t; }

Tensor copy_as(const Tensor& x, DType dtype) { return x.dtype() == dtype ? clone(x) : converted(x, dtype); }

// For each element of x, the number of elements that are combined to it, itself included.
Tensor counts(const Tensor& x, const Selection& s, bool include_self) {
  Tensor n = ones(x.sizes(), {combining_dtype(x.dtype()), x.device()});
  if (!include_self) n = filled_at(n, s, 0);
  combine_at(nullptr, Combine::sum, n, s, full({}, 1, {n.dtype(), n.device()}));
  return n;
}

// Combines the elements of x with src. x has the combining dtype.
void reduce_at(const char* op, const Tensor& x, const Selection& s, const Tensor& src, Reduce how,
               bool include_self) {
  if (!include_self) write_at(op, x, s, full({}, identity_of(how, x.dtype()), {x.dtype(), x.device()}));
  combine_at(include_self ? op : nullptr, combine_of(how), x, s, src);
}

// Not recorded.
Tensor reduced(const char* op, const Tensor& x, const Selection& s, const Tensor& src, Reduce how,
               bool include_self) {
  const NoGradGuard no_grad;
  Tensor y = copy_as(x, combining_dtype(x.dtype()));
  reduce_at(op, y, s, src, how, include_self);
  if (how == Reduce::mean) y = y.div(counts(x, s, include_self));
  return converted(y, x.dtype());
}

// The checked arguments of scatter_reduce.
struct ReduceArgs {
  Selection s;
  Reduce how;
  Tensor values;
  ReduceArgs(const Tensor& x, std::int64_t dim, const Tensor& index, const Tensor& src,
             std::string_view reduce)
      : s(elements(kScatterReduce, x, dim, index)), how(reduce_from(reduce)) {
    check<TypeError>(how != Reduce::mean || is_floating(x.dtype()), "[scatter_reduce] mean does not take ",
                     x.dtype(), "; convert the tensors to a floating dtype");
    values = source_for(kScatterReduce, x, s, src);
  }
};

struct Gradients {
  Tensor x, src;
};

Tensor recorded_product(const Tensor& x, const Selection& s, const Tensor& src, bool include_self);

// d(product) / d(factor) is the product of the other factors: the whole product divided by the factor, or,
// for a factor of 0, the product in which a 1 replaces it.
Gradients product_gradients(const Tensor& g, const Tensor& x, const Tensor& src, const Tensor& y,
                            const Selection& s, bool include_self) {
  const auto at = [&](const Tensor& t) { return taken(t, s, src.sizes()); };
  const Tensor nonzero_x = where(x == 0, ones_like(x), x);
  const Tensor without_x = recorded_product(nonzero_x, s, src, include_self);
  const Tensor is_zero = src == 0;
  const Tensor zeros_at = zeros(x.sizes(), {DType::i64, x.device()});
  combine_at(nullptr, Combine::sum, zeros_at, s, is_zero.to(DType::i64));
  const Tensor zeros_of_group = at(zeros_at);
  if (grad_enabled() && !x.device().is_meta()) tapestry::detail::check_host_reads("scatter_reduce", x);
  check<AutogradError>(
      !grad_enabled() || x.device().is_meta() ||
          !any(logical_and(is_zero, gt(zeros_of_group, 1))).item<bool>(),
      "[scatter_reduce] gradients of gradients are not available for a product of several zeros "
      "of src; replace them, or call without create_graph");
  const Tensor single = where(is_zero, zeros_of_group, zeros(src.sizes(), {DType::i64, x.device()})) == 1;
  const Tensor one = ones_like(src);
  const Tensor without_zero = recorded_product(x, s, where(single, one, src), include_self);
  return {g * without_x / nonzero_x,
          where(single, at(g * without_zero), at(g * y) / where(is_zero, one, src))};
}

// The gradient goes to the elements that are equal to the result, in equal parts.
Gradients extremum_gradients(const Tensor& g, const Tensor& x, const Tensor& src, const Tensor& y,
                             const Selection& s, bool include_self) {
  const auto at = [&](const Tensor& t) { return taken(t, s, src.sizes()); };
  const DType dtype = accumulation_dtype(g.dtype());
  const auto is_result = [&](const Tensor& t, const Tensor& result) {
    return where(isnan(result), isnan(t), t == result).to(dtype);
  };
  Tensor x_hits = is_result(x, y);
  if (!include_self) x_hits = filled_at(x_hits, s, 0);
  const Tensor src_hits = is_result(src, at(y));
  const Tensor hits = clone(x_hits);
  combine_at(nullptr, Combine::sum, hits, s, src_hits);
  const Tensor part = g.to(dtype) / hits;
  return {(x_hits * part).to(g.dtype()), (src_hits * at(part)).to(g.dtype())};
}

// Gradients of a sum or a mean. `sizes` is the shape of src.
Gradients sum_gradients(const Tensor& g, const Selection& s, const Shape& sizes, bool mean,
                        bool include_self) {
  const Tensor part = mean ? (g / counts(g, s, include_self)).to(g.dtype()) : g;
  return {part, taken(part, s, sizes)};
}

void set_gradients(Backward& b, const Selection& s, Gradients d, bool include_self) {
  if (b.needs(0)) b.set(0, include_self ? std::move(d.x) : filled_at(d.x, s, 0));
  if (b.needs(1)) b.set(1, std::move(d.src));
}

void record_reduce(const Tensor& y, const Tensor& x, const Selection& s, const Tensor& src, Reduce how,
                   bool include_self) {
  if (how == Reduce::sum || how == Reduce::mean) {
    record(kScatterReduce, y, {&x, &src},
           [saved = SavedSelection(s), sizes = src.sizes(), how, include_self](Backward& b) {
             const Selection s = saved.restore(b);
             set_gradients(b, s, sum_gradients(b.grad(), s, sizes, how == Reduce::mean, include_self),
                           include_self);
           });
  } else {
    record(kScatterReduce, y, {&x, &src},
           [saved = SavedSelection(s), x = save(x), src = save(src), y = save_output(y), how,
            include_self](Backward& b) {
             const Selection s = saved.restore(b);
             const auto gradients = how == Reduce::prod ? &product_gradients : &extremum_gradients;
             set_gradients(b, s, gradients(b.grad(), b.saved(x), b.saved(src), b.saved(y), s, include_self),
                           include_self);
           });
  }
}

// A product whose indices have been checked.
Tensor recorded_product(const Tensor& x, const Selection& s, const Tensor& src, bool include_self) {
  Tensor y = reduced(nullptr, x, s, src, Reduce::prod, include_self);
  if (recording(x, src)) record_reduce(y, x, s, src, Reduce::prod, include_self);
  return y;
}

}  // namespace

Tensor gather(const Tensor& x, std::int64_t dim, const Tensor& index) {
  const Selection s = elements(kGather, x, dim, index);
  const CallNote note(
      {.dims = x.dim() > 0 ? 1u << wrap_dim(kGather.name, dim, x.dim()) : 0u, .constants = {&index}});
  return taken(kGather, x, s, index.sizes());
}
Tensor Tensor::gather(std::int64_t dim, const Tensor& index) const {
  return tapestry::gather(*this, dim, index);
}

Tensor scatter(const Tensor& x, std::int64_t dim, const Tensor& index, const Tensor& src) {
  const Selection s = elements(kScatter, x, dim, index);
  return put_recorded(kScatter, x, s, source_for(kScatter, x, s, src));
}
Tensor scatter(const Tensor& x, std::int64_t dim, const Tensor& index, const Scalar& value) {
  return put_recorded(kScatter, x, elements(kScatter, x, dim, index), element_like(kScatter, x, value));
}
Tensor Tensor::scatter(std::int64_t dim, const Tensor& index, const Tensor& src) const {
  return tapestry::scatter(*this, dim, index, src);
}
Tensor Tensor::scatter(std::int64_t dim, const Tensor& index, const Scalar& value) const {
  return tapestry::scatter(*this, dim, index, value);
}
const Tensor& Tensor::scatter_(std::int64_t dim, const Tensor& index, const Tensor& src) const {
  const Selection s = elements(kScatter, *this, dim, index);
  put_in_place(kScatter, *this, s, source_for(kScatter, *this, s, src));
  return *this;
}
const Tensor& Tensor::scatter_(std::int64_t dim, const Tensor& index, const Scalar& value) const {
  put_in_place(kScatter, *this, elements(kScatter, *this, dim, index), element_like(kScatter, *this, value));
  return *this;
}

Tensor scatter_add(const Tensor& x, std::int64_t dim, const Tensor& index, const Tensor& src) {
  if (const autograd::Autocast cast(kScatterAdd, x, src); cast)
    return scatter_add(cast(x), dim, index, cast(src));
  const Selection s = elements(kScatterAdd, x, dim, index);
  return add_recorded(kScatterAdd, x, s, source_for(kScatterAdd, x, s, src));
}
Tensor Tensor::scatter_add(std::int64_t dim, const Tensor& index, const Tensor& src) const {
  return tapestry::scatter_add(*this, dim, index, src);
}
const Tensor& Tensor::scatter_add_(std::int64_t dim, const Tensor& index, const Tensor& src) const {
  const Selection s = elements(kScatterAdd, *this, dim, index);
  add_in_place(kScatterAdd, *this, s, source_for(kScatterAdd, *this, s, src));
  return *this;
}

Tensor scatter_reduce(const Tensor& x, std::int64_t dim, const Tensor& index, const Tensor& src,
                      std::string_view reduce, bool include_self) {
  const ReduceArgs a(x, dim, index, src, reduce);
  if (a.s.sizes.numel() == 0) return add_recorded(kScatterReduce, x, a.s, a.values);  // a copy of x
  Tensor y = reduced(kScatterReduce.name, x, a.s, a.values, a.how, include_self);
  if (recording(x, a.values)) record_reduce(y, x, a.s, a.values, a.how, include_self);
  return y;
}
Tensor Tensor::scatter_reduce(std::int64_t dim, const Tensor& index, const Tensor& src,
                              std::string_view reduce, bool include_self) const {
  return tapestry::scatter_reduce(*this, dim, index, src, reduce, include_self);
}
const Tensor& Tensor::scatter_reduce_(std::int64_t dim, const Tensor& index, const Tensor& src,
                                      std::string_view reduce, bool include_self) const {
  const ReduceArgs a(*this, dim, index, src, reduce);
  in_place(
      kScatterReduce, *this, {&src},
      [&] {
        const Selection s = apart_from(*this, a.s);
        const Tensor values = without_overlap(*this, a.values);
        if (a.how != Reduce::mean && combining_dtype(dtype()) == dtype())
          return reduce_at(kScatterReduce.name, *this, s, values, a.how, include_self);
        const Tensor y = reduced(kScatterReduce.name, *this, s, values, a.how, include_self);
        kernels::copy(device(), dtype(), planned(*this, y));
      },
      [&](const Tensor& old) {
        // Backward may need the old elements, which are about to be overwritten.
        return tapestry::scatter_reduce(old.clone(), dim, index, src, reduce, include_self);
      });
  return *this;
}

Tensor take_along_dim(const Tensor& x, const Tensor& indices, std::optional<std::int64_t> dim) {
  tapestry::detail::check_defined("take_along_dim", x);
  tapestry::detail::check_defined("take_along_dim", indices, "indices");
  // Negative indices count from the end, unlike those of gather().
  const auto from_start = [&](std::int64_t size) { return where(lt(indices, 0), indices + size, indices); };
  if (!dim) return gather(reshape(x, -1), 0, reshape(from_start(x.numel()), -1));
  check(x.dim() == indices.dim(), "[take_along_dim] indices have shape ", indices.sizes(), " and the tensor ",
        x.sizes(), "; both need the same number of dimensions");
  const int d = wrap_dim("take_along_dim", *dim, x.dim());
  if (x.dim() == 0) return gather(x, 0, from_start(1));
  Shape own = x.sizes(), theirs = indices.sizes();
  own[d] = theirs[d] = 1;
  Shape sizes = broadcast_shapes("take_along_dim", own, theirs);
  Shape of_x = sizes, of_indices = sizes;
  of_x[d] = x.sizes()[d];
  of_indices[d] = indices.sizes()[d];
  return gather(expand(x, of_x), d, expand(from_start(x.sizes()[d]), of_indices));
}
Tensor Tensor::take_along_dim(const Tensor& indices, std::optional<std::int64_t> dim) const {
  return tapestry::take_along_dim(*this, indices, dim);
}

}  // namespace tapestry
