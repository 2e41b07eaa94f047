// Views show the same elements with another shape or order, or a part of them. No kernel runs. The backward
// of a view is a view of the gradient, or places the gradient among zeros.
#include "tapestry/autograd/ops/view.h"

#include <algorithm>
#include <utility>

#include "tapestry/autograd/internal/record_observer.h"
#include "tapestry/autograd/ops/creation.h"
#include "tapestry/autograd/ops/internal/parts.h"
#include "tapestry/autograd/ops/reduce.h"
#include "tapestry/autograd/tape.h"

namespace tapestry {
namespace {

using autograd::Backward;
using autograd::CallNote;
using autograd::Grad;
using autograd::Op;
using autograd::Part;
using autograd::part_backward;
using autograd::raw_part;
using autograd::recorded_part;
using autograd::slice_part;
using detail::check_defined;

const Op kView("view", Grad::twice, kAllDTypes);
const Op kReshape("reshape", Grad::twice, kAllDTypes);
const Op kFlatten("flatten", Grad::twice, kAllDTypes);
const Op kTranspose("transpose", Grad::twice, kAllDTypes);
const Op kPermute("permute", Grad::twice, kAllDTypes);
const Op kSqueeze("squeeze", Grad::twice, kAllDTypes);
const Op kUnsqueeze("unsqueeze", Grad::twice, kAllDTypes);
const Op kExpand("expand", Grad::twice, kAllDTypes);
const Op kNarrow("narrow", Grad::twice, kAllDTypes);
const Op kSlice("slice", Grad::twice, kAllDTypes);
const Op kSelect("select", Grad::twice, kAllDTypes);

template <class F>
Tensor recorded_view(const Op& op, Tensor y, const Tensor& x, F backward) {
  if (autograd::recording(x)) {
    autograd::record(op, y, {&x}, std::move(backward));
    autograd::mark_view(y);
  }
  return y;
}

// Returns the strides of a view of `x` with shape `sizes`, or nothing if that shape needs a copy. x and the
// view have the same number of elements. Adjacent dimensions of x that can be merged form a group. The view
// exists if each group's number of elements is a product of consecutive sizes.
std::optional<Shape> strides_without_copy(const Tensor& x, const Shape& sizes) {
  if (x.numel() == 0) return contiguous_strides(sizes);
  Shape strides = Shape::filled(sizes.size(), 1);
  int to = sizes.size() - 1;
  for (int last = x.dim() - 1; last >= 0;) {
    if (x.sizes()[last] == 1) {
      --last;
      continue;
    }
    const std::int64_t step = x.strides()[last];
    std::int64_t elements = x.sizes()[last--];
    for (; last >= 0 && (x.sizes()[last] == 1 || x.strides()[last] == elements * step); --last)
      elements *= x.sizes()[last];
    std::int64_t covered = 1;
    for (; to >= 0 && covered < elements; --to) {
      strides[to] = covered * step;
      covered *= sizes[to];
    }
    if (covered != elements) return std::nullopt;
  }
  // The remaining sizes are 1, and their strides do not matter. They get the strides of a dense tensor.
  for (; to >= 0; --to) strides[to] = to + 1 < sizes.size() ? strides[to + 1] * sizes[to + 1] : 1;
  return strides;
}

// Fills in a size of -1 and checks that the number of elements stays the same.
Shape completed(const Op& op, const Tensor& x, const Shape& sizes) {
  Shape out = sizes;
  int unknown = -1;
  for (int i = 0; i < sizes.size(); ++i) {
    if (sizes[i] != -1) continue;
    check(unknown < 0, "[", op.name, "] more than one size in ", sizes, " is -1; only one can be worked out");
    unknown = i;
    out[i] = 1;
  }
  const std::int64_t known = checked_numel(op.name, out);
  if (unknown >= 0) {
    check(known != 0, "[", op.name, "] the size -1 in ", sizes,
          " cannot be worked out beside a size of 0; give it");
    check(x.numel() % known == 0, "[", op.name, "] ", x.numel(), " elements of shape ", x.sizes(),
          " do not fill shape ", sizes, "; the known sizes must divide their number");
    out[unknown] = x.numel() / known;
  } else {
    check(known == x.numel(), "[", op.name, "] shape ", sizes, " has ", known,
          " elements, the tensor of shape ", x.sizes(), " ", x.numel(), "; both must be equal");
  }
  return out;
}

// view() or reshape() to complete sizes, recorded as `op`.
Tensor reshaped(const Op& op, const Tensor& x, const Shape& sizes) {
  const std::optional<Shape> strides = strides_without_copy(x, sizes);
  if (strides) {
    return recorded_view(op, detail::raw_view(x, sizes, *strides, x.storage_offset()), x,
                         [from = x.sizes()](Backward& b) { b.set(0, reshape(b.grad(), from)); });
  }
  Tensor dense;
  {
    const NoGradGuard no_grad;
    dense = contiguous(x);
  }
  const Tensor y = detail::raw_view(dense, sizes, contiguous_strides(sizes), dense.storage_offset());
  if (autograd::recording(x))
    autograd::record(op, y, {&x}, [from = x.sizes()](Backward& b) { b.set(0, reshape(b.grad(), from)); });
  return y;
}

Tensor permuted(const Op& op, const Tensor& x, const Dims& order) {
  Shape sizes = x.sizes(), strides = x.strides();
  for (int i = 0; i < order.size(); ++i) {
    sizes[i] = x.sizes()[static_cast<int>(order[i])];
    strides[i] = x.strides()[static_cast<int>(order[i])];
  }
  const CallNote note({.order = &order});
  return recorded_view(op, detail::raw_view(x, sizes, strides, x.storage_offset()), x, [order](Backward& b) {
    Dims inverse = order;
    for (int i = 0; i < order.size(); ++i) inverse[static_cast<int>(order[i])] = i;
    b.set(0, permute(b.grad(), inverse));
  });
}

int existing_dim(const Op& op, const Tensor& x, std::int64_t dim) {
  check<IndexError>(x.dim() > 0, "[", op.name, "] a 0-d tensor has no dimension ", dim,
                    "; unsqueeze(0) gives it one");
  return wrap_dim(op.name, dim, x.dim());
}

}  // namespace

Tensor autograd::recorded_part(const Op& op, const Tensor& x, const Part& part) {
  const CallNote note({.dims = 1u << part.dim});
  return recorded_view(op, raw_part(x, part), x, [part, from = x.sizes()](Backward& b) {
    b.set(0, part_backward(b.grad(), from, part));
  });
}

Tensor autograd::raw_part(const Tensor& x, const Part& part) {
  Shape sizes = x.sizes(), strides = x.strides();
  const std::int64_t offset = x.storage_offset() + part.start * strides[part.dim];
  sizes[part.dim] = part.length;
  strides[part.dim] *= part.step;
  if (part.drop) {
    sizes.erase(part.dim);
    strides.erase(part.dim);
  }
  return tapestry::detail::raw_view(x, sizes, strides, offset);
}

Part autograd::slice_part(int dim, std::int64_t size, std::optional<std::int64_t> start,
                          std::optional<std::int64_t> end, std::int64_t step) {
  const auto clamped = [size](std::int64_t i) {
    return std::clamp<std::int64_t>(i < 0 ? i + size : i, 0, size);
  };
  const std::int64_t first = clamped(start.value_or(0)), last = clamped(end.value_or(size));
  const std::int64_t span = std::max<std::int64_t>(last - first, 0);
  // If the step is not less than the span, only the first element is selected, and the step has no effect. It
  // is replaced by 1, because its product with the stride could overflow.
  return {
      .dim = dim, .start = first, .length = span / step + (span % step != 0), .step = step < span ? step : 1};
}

Tensor autograd::part_backward(const Tensor& g, const Shape& sizes, const Part& part) {
  const Tensor out = zeros(sizes, TensorOptions(g.dtype(), g.device()));
  {
    const NoGradGuard no_grad;
    if (g.numel() > 0) raw_part(out, part).copy_(g);
  }
  if (recording(g))
    record(kNarrow, out, {&g}, [part](Backward& b) { b.set(0, recorded_part(kNarrow, b.grad(), part)); });
  return out;
}

Tensor view(const Tensor& x, const Shape& sizes) {
  check_defined("view", x);
  const Shape to = completed(kView, x, sizes);
  check(strides_without_copy(x, to).has_value(), "[view] a tensor of shape ", x.sizes(), " and strides ",
        x.strides(), " cannot be seen as ", to, " without a copy; use reshape() or contiguous() first");
  return reshaped(kView, x, to);
}
Tensor Tensor::view(const Shape& sizes) const { return tapestry::view(*this, sizes); }

Tensor reshape(const Tensor& x, const Shape& sizes) {
  check_defined("reshape", x);
  return reshaped(kReshape, x, completed(kReshape, x, sizes));
}
Tensor Tensor::reshape(const Shape& sizes) const { return tapestry::reshape(*this, sizes); }

Tensor flatten(const Tensor& x, std::int64_t start, std::int64_t end) {
  check_defined("flatten", x);
  const int first = wrap_dim("flatten", start, x.dim()), last = wrap_dim("flatten", end, x.dim());
  check(first <= last, "[flatten] start ", start, " comes after end ", end, " in a tensor with ", x.dim(),
        " dimensions; give them in order");
  if (x.dim() == 0) return reshaped(kFlatten, x, {1});
  Shape sizes;
  for (int i = 0; i < x.dim(); ++i) {
    if (i > first && i <= last) sizes.back() *= x.sizes()[i];
    else sizes.push_back(x.sizes()[i]);
  }
  const CallNote note({.dims = (2u << last) - (1u << first)});
  return reshaped(kFlatten, x, sizes);
}
Tensor Tensor::flatten(std::int64_t start, std::int64_t end) const {
  return tapestry::flatten(*this, start, end);
}

Tensor transpose(const Tensor& x, std::int64_t a, std::int64_t b) {
  check_defined("transpose", x);
  const int i = wrap_dim("transpose", a, x.dim()), j = wrap_dim("transpose", b, x.dim());
  Dims order;
  for (int d = 0; d < x.dim(); ++d) order.push_back(d == i ? j : d == j ? i : d);
  return permuted(kTranspose, x, order);
}
Tensor Tensor::transpose(std::int64_t a, std::int64_t b) const { return tapestry::transpose(*this, a, b); }

Tensor Tensor::t() const {
  check_defined("t", *this);
  check(dim() <= 2, "[t] a tensor of shape ", sizes(), " has ", dim(),
        " dimensions; t() is for at most two, transpose(a, b) for more");
  return transpose(0, dim() < 2 ? 0 : 1);
}

Tensor permute(const Tensor& x, const Dims& dims) {
  check_defined("permute", x);
  check(dims.size() == x.dim(), "[permute] ", dims.size(), " dimensions in ", dims, " for a tensor of shape ",
        x.sizes(), "; name each of its dimensions once");
  Dims order;
  unsigned seen = 0;
  for (const std::int64_t dim : dims) {
    const int d = wrap_dim("permute", dim, x.dim());
    check((seen >> d & 1) == 0, "[permute] dimension ", d, " appears twice in ", dims,
          "; name each dimension once");
    seen |= 1u << d;
    order.push_back(d);
  }
  return permuted(kPermute, x, order);
}
Tensor Tensor::permute(const Dims& dims) const { return tapestry::permute(*this, dims); }

Tensor squeeze(const Tensor& x) {
  check_defined("squeeze", x);
  Shape sizes, strides;
  unsigned removed = 0;
  for (int i = 0; i < x.dim(); ++i) {
    if (x.sizes()[i] == 1) {
      removed |= 1u << i;
      continue;
    }
    sizes.push_back(x.sizes()[i]);
    strides.push_back(x.strides()[i]);
  }
  const CallNote note({.dims = removed});
  return recorded_view(kSqueeze, detail::raw_view(x, sizes, strides, x.storage_offset()), x,
                       [from = x.sizes()](Backward& b) { b.set(0, reshape(b.grad(), from)); });
}
Tensor Tensor::squeeze() const { return tapestry::squeeze(*this); }

Tensor squeeze(const Tensor& x, std::int64_t dim) {
  check_defined("squeeze", x);
  const int d = wrap_dim("squeeze", dim, x.dim());
  Shape sizes = x.sizes(), strides = x.strides();
  const bool removes = x.dim() > 0 && sizes[d] == 1;
  if (removes) {
    sizes.erase(d);
    strides.erase(d);
  }
  const CallNote note({.dims = removes ? 1u << d : 0u});
  return recorded_view(kSqueeze, detail::raw_view(x, sizes, strides, x.storage_offset()), x,
                       [from = x.sizes()](Backward& b) { b.set(0, reshape(b.grad(), from)); });
}
Tensor Tensor::squeeze(std::int64_t dim) const { return tapestry::squeeze(*this, dim); }

Tensor unsqueeze(const Tensor& x, std::int64_t dim) {
  check_defined("unsqueeze", x);
  check(x.dim() < kMaxDims, "[unsqueeze] a tensor of shape ", x.sizes(),
        " has no room for one more dimension; ", kMaxDims, " is the limit");
  const int d = wrap_dim("unsqueeze", dim, x.dim() + 1);
  Shape sizes = x.sizes(), strides = x.strides();
  strides.insert(d, d < x.dim() ? sizes[d] * strides[d] : 1);
  sizes.insert(d, 1);
  const CallNote note({.dims = 1u << d});
  return recorded_view(kUnsqueeze, detail::raw_view(x, sizes, strides, x.storage_offset()), x,
                       [d](Backward& b) { b.set(0, squeeze(b.grad(), d)); });
}
Tensor Tensor::unsqueeze(std::int64_t dim) const { return tapestry::unsqueeze(*this, dim); }

Tensor expand(const Tensor& x, const Shape& sizes) {
  check_defined("expand", x);
  const int extra = sizes.size() - x.dim();
  check(extra >= 0, "[expand] ", sizes, " has fewer dimensions than the tensor of shape ", x.sizes(),
        "; give at least as many");
  Shape to = sizes, strides = Shape::filled(sizes.size(), 0);
  Dims repeated;
  for (int i = 0; i < sizes.size(); ++i) {
    const std::int64_t from = i < extra ? 1 : x.sizes()[i - extra];
    check(sizes[i] >= 0 || (sizes[i] == -1 && i >= extra), "[expand] size ", sizes[i], " of dimension ", i,
          " in ", sizes, " for a tensor of shape ", x.sizes(),
          "; -1 keeps a size that exists, others are 0 or more");
    if (sizes[i] == -1) to[i] = from;
    check(to[i] == from || from == 1, "[expand] dimension ", i, " of shape ", x.sizes(), " to ", sizes,
          ": size ", from, " does not repeat to ", to[i], "; only a size of 1 does");
    if (to[i] != from) repeated.push_back(i);
    else if (i >= extra) strides[i] = x.strides()[i - extra];
  }
  checked_numel("expand", to);
  return recorded_view(kExpand, detail::raw_view(x, to, strides, x.storage_offset()), x,
                       [repeated, from = x.sizes()](Backward& b) {
                         const Tensor& g = b.grad();
                         b.set(0, reshape(repeated.empty() ? g : sum(g, repeated), from));
                       });
}
Tensor Tensor::expand(const Shape& sizes) const { return tapestry::expand(*this, sizes); }

Tensor narrow(const Tensor& x, std::int64_t dim, std::int64_t start, std::int64_t length) {
  check_defined("narrow", x);
  const int d = existing_dim(kNarrow, x, dim);
  const std::int64_t size = x.sizes()[d];
  check(length >= 0, "[narrow] length ", length, " is negative; give 0 or more");
  check<IndexError>(start >= -size && start <= size, "[narrow] start ", start,
                    " is out of range for dimension ", d, " of shape ", x.sizes(), "; use ", -size, " to ",
                    size);
  const std::int64_t first = start < 0 ? start + size : start;
  check<IndexError>(length <= size - first, "[narrow] start ", start, " and length ", length,
                    " reach beyond size ", size, " of dimension ", d, "; at most ", size - first,
                    " elements are left");
  return recorded_part(kNarrow, x, {.dim = d, .start = first, .length = length});
}
Tensor Tensor::narrow(std::int64_t dim, std::int64_t start, std::int64_t length) const {
  return tapestry::narrow(*this, dim, start, length);
}

Tensor slice(const Tensor& x, std::int64_t dim, std::optional<std::int64_t> start,
             std::optional<std::int64_t> end, std::int64_t step) {
  check_defined("slice", x);
  const int d = existing_dim(kSlice, x, dim);
  check(step >= 1, "[slice] step ", step, " is not positive; use 1 or more");
  return recorded_part(kSlice, x, slice_part(d, x.sizes()[d], start, end, step));
}
Tensor Tensor::slice(std::int64_t dim, std::optional<std::int64_t> start, std::optional<std::int64_t> end,
                     std::int64_t step) const {
  return tapestry::slice(*this, dim, start, end, step);
}

Tensor select(const Tensor& x, std::int64_t dim, std::int64_t index) {
  check_defined("select", x);
  const int d = existing_dim(kSelect, x, dim);
  const std::int64_t size = x.sizes()[d];
  check<IndexError>(index >= -size && index < size, "[select] index ", index,
                    " is out of range for dimension ", d, " of shape ", x.sizes(), "; use ", -size, " to ",
                    size - 1);
  return recorded_part(kSelect, x,
                       {.dim = d, .start = index < 0 ? index + size : index, .length = 1, .drop = true});
}
Tensor Tensor::select(std::int64_t dim, std::int64_t index) const {
  return tapestry::select(*this, dim, index);
}
Tensor Tensor::operator[](std::int64_t index) const { return tapestry::select(*this, 0, index); }

}  // namespace tapestry
