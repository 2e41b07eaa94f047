// Views whose strides are computed: diagonal, unfold and as_strided. Elements of the last two may share
// memory, and the gradient then adds up.
#include <algorithm>

#include "tapestry/autograd/ops/creation.h"
#include "tapestry/autograd/ops/elementwise.h"
#include "tapestry/autograd/ops/internal/common.h"
#include "tapestry/autograd/ops/internal/parts.h"
#include "tapestry/autograd/ops/view.h"
#include "tapestry/autograd/tape.h"
#include "tapestry/kernels/ops/index.h"

namespace tapestry {
namespace {

using autograd::Backward;
using autograd::elements_overlap;
using autograd::Grad;
using autograd::Op;
using autograd::raw_diagonal;
using detail::check_defined;
using detail::raw_view;

const Op kDiagonal("diagonal", Grad::twice, kAllDTypes);
const Op kUnfold("unfold", Grad::twice, kAllDTypes);
const Op kAsStrided("as_strided", Grad::twice, kAllDTypes);

// The positions of a tensor's elements in flat memory.
struct Layout {
  Shape sizes, strides;
  std::int64_t offset = 0;

  std::int64_t last() const {
    std::int64_t at = offset;
    for (int d = 0; d < sizes.size(); ++d) at += (sizes[d] - 1) * strides[d];
    return at;
  }
  Tensor of(const Tensor& memory) const { return raw_view(memory, sizes, strides, offset); }
};

// Adds the elements of `values` to `memory` (1-d, of the dtype that index_add accumulates in) at the
// positions of `layout`, some of which may be equal.
void add_at(const Tensor& memory, const Layout& layout, const Tensor& values) {
  const TensorOptions integers(DType::i64, memory.device());
  const Tensor index = autograd::raw_contiguous(layout.of(arange(memory.numel(), integers)));
  kernels::index_add(memory.device(), values.dtype(),
                     {.outer = 1,
                      .rows = memory.numel(),
                      .count = index.numel(),
                      .inner = 1,
                      .index = index,
                      .dy = autograd::raw_contiguous(values),
                      .dx = memory,
                      .first_bad = nullptr});  // not needed, because the positions are computed
}

// Flat memory for two layouts.
struct Memory {
  Layout in, out;
  Tensor zero;

  Memory(const Layout& in_layout, const Layout& out_layout, const TensorOptions& options)
      : in(in_layout), out(out_layout) {
    const std::int64_t first = std::min(in.offset, out.offset);
    in.offset -= first;
    out.offset -= first;
    zero = zeros({std::max(in.last(), out.last()) + 1}, options);
  }
  /// The memory with the elements of `values` at `layout`. Elements that share memory are added.
  Tensor with(const Tensor& values, const Layout& layout) const {
    const Tensor memory = zeros_like(zero);
    if (elements_overlap(layout.of(memory))) add_at(memory, layout, values);
    else layout.of(memory).copy_(values);
    return memory;
  }
  /// How many elements of `in` share each place.
  Tensor counts() const { return with(ones(in.sizes, TensorOptions(zero.dtype(), zero.device())), in); }
};

// The gradient of a tensor with the layout `in`, computed from the gradient g of its view with the layout
// `out`. g is placed in flat memory as the view is, and then read as the tensor is (PyTorch's
// as_strided_backward).
Tensor strided_backward(const Tensor& g, const Layout& in, const Layout& out) {
  if (g.numel() == 0 || in.sizes.numel() == 0) return zeros(in.sizes, TensorOptions(g.dtype(), g.device()));
  const Memory memory(in, out, TensorOptions(autograd::accumulation_dtype(g.dtype()), g.device()));
  const NoGradGuard no_grad;
  const Tensor sums = memory.with(g, memory.out);
  Tensor dx = memory.in.of(sums);
  if (elements_overlap(dx)) dx = div(dx, memory.in.of(memory.counts()));
  return dx.to(g.dtype());
}
// The gradient of strided_backward(g, in, out), computed from the gradient v of its result. The two functions
// are each other's gradients.
Tensor strided_forward(const Tensor& v, const Layout& in, const Layout& out) {
  if (v.numel() == 0 || out.sizes.numel() == 0) return zeros(out.sizes, TensorOptions(v.dtype(), v.device()));
  const Memory memory(in, out, TensorOptions(autograd::accumulation_dtype(v.dtype()), v.device()));
  const NoGradGuard no_grad;
  Tensor share = v;
  if (elements_overlap(memory.in.of(memory.zero))) share = div(v, memory.in.of(memory.counts()));
  return memory.out.of(memory.with(share, memory.in)).to(v.dtype()).clone();
}
Tensor recorded_forward(const Tensor& v, const Layout& in, const Layout& out);
Tensor recorded_backward(const Tensor& g, const Layout& in, const Layout& out) {
  const Tensor dx = strided_backward(g, in, out);
  if (autograd::recording(g))
    autograd::record(kAsStrided, dx, {&g},
                     [in, out](Backward& b) { b.set(0, recorded_forward(b.grad(), in, out)); });
  return dx;
}
Tensor recorded_forward(const Tensor& v, const Layout& in, const Layout& out) {
  const Tensor y = strided_forward(v, in, out);
  if (autograd::recording(v))
    autograd::record(kAsStrided, y, {&v},
                     [in, out](Backward& b) { b.set(0, recorded_backward(b.grad(), in, out)); });
  return y;
}

Tensor strided(const Op& op, const Tensor& x, const Layout& layout, const Layout& in, const Layout& out) {
  const Tensor y = raw_view(x, layout.sizes, layout.strides, layout.offset);
  if (autograd::recording(x)) {
    autograd::record(op, y, {&x}, [in, out](Backward& b) { b.set(0, recorded_backward(b.grad(), in, out)); });
    autograd::mark_view(y);
  }
  return y;
}

// A tensor of shape `sizes` with g on its diagonal, and 0 elsewhere.
Tensor diagonal_backward(const Tensor& g, const Shape& sizes, std::int64_t offset, int d1, int d2) {
  const Tensor dx = zeros(sizes, TensorOptions(g.dtype(), g.device()));
  {
    const NoGradGuard no_grad;
    if (g.numel() > 0) raw_diagonal(dx, offset, d1, d2).copy_(g);
  }
  if (autograd::recording(g))
    autograd::record(kDiagonal, dx, {&g},
                     [offset, d1, d2](Backward& b) { b.set(0, diagonal(b.grad(), offset, d1, d2)); });
  return dx;
}

}  // namespace

Tensor autograd::raw_diagonal(const Tensor& x, std::int64_t offset, int d1, int d2) {
  const std::int64_t rows = x.sizes()[d1], cols = x.sizes()[d2];
  offset = std::clamp(offset, -rows, cols);  // the diagonal is empty at both limits
  const std::int64_t length = offset >= 0 ? std::min(rows, cols - offset) : std::min(rows + offset, cols);
  const std::int64_t first = offset >= 0 ? offset * x.strides()[d2] : -offset * x.strides()[d1];
  Shape sizes = x.sizes(), strides = x.strides();
  for (const int d : {std::max(d1, d2), std::min(d1, d2)}) {
    sizes.erase(d);
    strides.erase(d);
  }
  sizes.push_back(length);
  strides.push_back(x.strides()[d1] + x.strides()[d2]);
  return raw_view(x, sizes, strides, x.storage_offset() + (sizes.numel() > 0 ? first : 0));
}

Tensor diagonal(const Tensor& x, std::int64_t offset, std::int64_t dim1, std::int64_t dim2) {
  check_defined("diagonal", x);
  check(x.dim() >= 2, "[diagonal] a tensor of shape ", x.sizes(), " has no matrices; give at least 2-d");
  const int d1 = wrap_dim("diagonal", dim1, x.dim()), d2 = wrap_dim("diagonal", dim2, x.dim());
  check(d1 != d2, "[diagonal] dim1 ", dim1, " and dim2 ", dim2, " are the same dimension of ", x.sizes(),
        "; name two");
  const Tensor y = raw_diagonal(x, offset, d1, d2);
  if (autograd::recording(x)) {
    autograd::record(kDiagonal, y, {&x}, [offset, d1, d2, from = x.sizes()](Backward& b) {
      b.set(0, diagonal_backward(b.grad(), from, offset, d1, d2));
    });
    autograd::mark_view(y);
  }
  return y;
}
Tensor Tensor::diagonal(std::int64_t offset, std::int64_t dim1, std::int64_t dim2) const {
  return tapestry::diagonal(*this, offset, dim1, dim2);
}

Tensor unfold(const Tensor& x, std::int64_t dim, std::int64_t size, std::int64_t step) {
  check_defined("unfold", x);
  check(x.dim() < kMaxDims, "[unfold] a tensor of shape ", x.sizes(), " has no room for one more dimension; ",
        kMaxDims, " is the limit");
  const int d = wrap_dim("unfold", dim, x.dim());
  const std::int64_t length = x.dim() > 0 ? x.sizes()[d] : 1;
  check(size >= 0 && size <= length, "[unfold] windows of ", size, " elements in dimension ", d, " of shape ",
        x.sizes(), "; use 0 to ", length);
  check(step >= 1, "[unfold] step ", step, " is not positive; use 1 or more");
  if (x.dim() == 0) return narrow(unsqueeze(x, 0), 0, 0, size);
  const std::int64_t windows = (length - size) / step + 1;
  // If there is one window, the step has no effect. Its product with the stride could overflow.
  const auto windowed = [&](Shape sizes, Shape strides, std::int64_t offset) {
    sizes[d] = windows;
    sizes.push_back(size);
    strides.push_back(strides[d]);
    if (windows > 1) strides[d] *= step;
    return Layout{sizes, strides, offset};
  };
  // The gradient is computed in the layout of a dense tensor.
  const Layout dense{x.sizes(), contiguous_strides(x.sizes()), 0};
  return strided(kUnfold, x, windowed(x.sizes(), x.strides(), x.storage_offset()), dense,
                 windowed(dense.sizes, dense.strides, 0));
}
Tensor Tensor::unfold(std::int64_t dim, std::int64_t size, std::int64_t step) const {
  return tapestry::unfold(*this, dim, size, step);
}

Tensor as_strided(const Tensor& x, const Shape& sizes, const Shape& strides,
                  std::optional<std::int64_t> storage_offset) {
  check_defined("as_strided", x);
  check(sizes.size() == strides.size(), "[as_strided] ", sizes.size(), " sizes ", sizes, " and ",
        strides.size(), " strides ", strides, "; give one stride for each size");
  const std::int64_t offset = storage_offset.value_or(x.storage_offset());
  check(offset >= 0, "[as_strided] storage offset ", offset, " is negative; use 0 or more");
  const std::int64_t elements = checked_numel("as_strided", sizes);
  std::int64_t last = offset;
  bool fits = true;
  for (int d = 0; d < sizes.size(); ++d) {
    check(strides[d] >= 0, "[as_strided] stride ", strides[d], " in ", strides,
          " is negative; use 0 or more");
    std::int64_t reach = 0;
    fits = fits && !__builtin_mul_overflow(std::max<std::int64_t>(sizes[d] - 1, 0), strides[d], &reach) &&
           !__builtin_add_overflow(last, reach, &last);
  }
  const auto stored =
      static_cast<std::int64_t>(x.storage()->bytes() / std::max<std::size_t>(dtype_size(x.dtype()), 1));
  check(elements == 0 || (fits && last < stored), "[as_strided] sizes ", sizes, ", strides ", strides,
        " and offset ", offset, " reach beyond the ", stored,
        " elements of the storage; choose smaller ones");
  const Layout layout{sizes, strides, elements > 0 ? offset : x.storage_offset()};
  return strided(kAsStrided, x, layout, {x.sizes(), x.strides(), x.storage_offset()}, layout);
}
Tensor Tensor::as_strided(const Shape& sizes, const Shape& strides,
                          std::optional<std::int64_t> storage_offset) const {
  return tapestry::as_strided(*this, sizes, strides, storage_offset);
}

}  // namespace tapestry
