#include "tapestry/autograd/ops/internal/indexed.h"

#include "tapestry/autograd/ops/arithmetic.h"
#include "tapestry/autograd/ops/creation.h"
#include "tapestry/autograd/ops/internal/bad_index.h"
#include "tapestry/autograd/ops/internal/common.h"
#include "tapestry/kernels/ops/copy.h"

namespace tapestry::autograd {
namespace {

using kernels::Indexed;

std::int64_t stride_or_0(const Tensor& t, int d) {
  return t.dim() == 0 || t.sizes()[d] == 1 ? 0 : t.strides()[d];
}

// The dimensions [first, end) of s.sizes that index tensors depend on, as the kernels number positions.
struct IndexedDims {
  int first = 0, end = 0;
  explicit IndexedDims(const Selection& s) {
    for (int d = 0; d < s.sizes.size(); ++d) {
      bool depends = false;
      for (const Selection::Index& index : s.index) depends |= stride_or_0(index.values, d) != 0;
      if (!depends) continue;
      if (end == 0) first = d;
      end = d + 1;
    }
  }
};

void copy_dim(Indexed& a, int to, int from) {
  a.sizes[to] = a.sizes[from];
  a.x_strides[to] = a.x_strides[from];
  a.y_strides[to] = a.y_strides[from];
  for (int k = 0; k < a.count; ++k) a.index[k].strides[to] = a.index[k].strides[from];
}
bool mergeable(const Indexed& a, int outer, int inner) {
  const auto fits = [&](const std::int64_t* strides) {
    return strides[outer] == strides[inner] * a.sizes[inner];
  };
  bool all = fits(a.x_strides) && fits(a.y_strides);
  for (int k = 0; k < a.count; ++k) all &= fits(a.index[k].strides);
  return all;
}

// The loop of a kernel that pairs each element that the indices select in x with an element of y: sizes and
// strides of both, and of the index tensors. y broadcasts to the shape of the selection.
Indexed loop_over(const Tensor& x, const Selection& s, const Tensor& y,
                  const kernels::BadIndexCell& first_bad) {
  Indexed a;
  a.count = static_cast<int>(s.index.size());
  a.wraps = s.wraps;
  a.first_bad = first_bad;
  for (int k = 0; k < a.count; ++k) {
    const Selection::Index& index = s.index[static_cast<std::size_t>(k)];
    a.index[k].values = static_cast<const std::int64_t*>(index.values.raw_data());
    a.index[k].size = x.dim() == 0 ? 1 : x.sizes()[index.dim];
    a.index[k].x_stride = x.dim() == 0 ? 0 : x.strides()[index.dim];
  }
  int n = 0;
  const int missing = s.sizes.size() - y.dim();  // y broadcasts along these leading dimensions
  for (int d = 0; d < s.sizes.size(); ++d) {
    if (s.sizes[d] == 1) continue;
    a.sizes[n] = s.sizes[d];
    a.x_strides[n] = s.dims[d] < 0 ? 0 : x.strides()[static_cast<int>(s.dims[d])];
    a.y_strides[n] = d < missing ? 0 : stride_or_0(y, d - missing);
    for (int k = 0; k < a.count; ++k)
      a.index[k].strides[n] = stride_or_0(s.index[static_cast<std::size_t>(k)].values, d);
    ++n;
  }
  int last = 0;
  for (int d = 1; d < n; ++d) {
    if (mergeable(a, last, d)) {
      const std::int64_t size = a.sizes[last] * a.sizes[d];
      copy_dim(a, last, d);
      a.sizes[last] = size;
    } else {
      copy_dim(a, ++last, d);
    }
  }
  if (n == 0) {
    a.sizes[0] = 1;
    a.x_strides[0] = a.y_strides[0] = 0;
    for (int k = 0; k < a.count; ++k) a.index[k].strides[0] = 0;
  }
  a.ndim = last + 1;
  a.first = a.end = 0;
  for (int d = 0; d < a.ndim; ++d) {
    bool depends = false;
    for (int k = 0; k < a.count; ++k) depends |= a.index[k].strides[d] != 0;
    if (!depends) continue;
    if (a.end == 0) a.first = d;
    a.end = d + 1;
  }
  return a;
}

// The range of valid indices of `index` into a tensor of shape `view`.
struct ValidRange {
  std::int64_t lowest, end;
  ValidRange(const Selection& s, const Selection::Index& index, const Shape& view)
      : lowest(0), end(view.empty() ? 1 : view[index.dim]) {
    if (s.wraps) lowest = -end;
  }
};

// Throws the IndexError for the position that a kernel has reported.
[[noreturn]] void fail_at(const char* op, const Selection& s, const Shape& view, std::int64_t position) {
  const IndexedDims dims(s);
  std::int64_t coordinate[kMaxDims] = {}, rest = position;
  for (int d = dims.end - 1; d >= dims.first; --d) {
    coordinate[d] = rest % s.sizes[d];
    rest /= s.sizes[d];
  }
  for (const Selection::Index& index : s.index) {
    std::int64_t offset = 0;
    for (int d = dims.first; d < dims.end; ++d) offset += coordinate[d] * stride_or_0(index.values, d);
    const std::int64_t value = index.values.data<std::int64_t>()[offset];
    const ValidRange valid(s, index, view);
    check<IndexError>(value >= valid.lowest && value < valid.end, "[", op, "] index ", value, " at position ",
                      position, " is outside [", valid.lowest, ", ", valid.end, ") for dimension ", index.dim,
                      " of a tensor of shape ", view, "; correct it");
  }
  fail<IndexError>("[", op, "] an index at position ", position,
                   " was out of range; do not change indices while another thread uses them");
}

// Calls run(loop), and throws IndexError for an index out of range. For a GPU it does so when the host next
// waits.
template <class F>
void run_at(const char* op, const Tensor& x, const Selection& s, const Tensor& y, const F& run) {
  if (!op) return run(loop_over(x, s, y, nullptr));
  BadIndex bad(x.device());
  run(loop_over(x, s, y, bad.cell()));
  if (!x.device().is_cuda())
    return bad.check_with([&](std::int64_t position) { fail_at(op, s, x.sizes(), position); });
  const bool one = s.index.size() == 1;
  const ValidRange valid(s, s.index[0], x.sizes());
  bad.check_with([=, shape = x.sizes(), device = x.device()](std::int64_t position) {
    if (one)
      fail<IndexError>("[", op, "] index at position ", position, " is outside [", valid.lowest, ", ",
                       valid.end, "), as ", device, " found by the time the host waited for it; correct it");
    fail<IndexError>("[", op, "] an index at position ", position,
                     " is outside its dimension of a tensor of shape ", shape, ", as ", device,
                     " found by the time the host waited for it; correct it");
  });
}

// The dtype in which elements of dtype t are combined.
DType combining_dtype(DType t) { return is_floating(t) ? accumulation_dtype(t) : t; }

Tensor copy_of(const Tensor& x, DType dtype) {
  const NoGradGuard no_grad;
  return x.dtype() == dtype ? clone(x) : converted(x, dtype);
}

}  // namespace

Tensor without_overlap(const Tensor& x, const Tensor& t) {
  if (!t.defined()) return t;
  const bool same_start = x.device().is_meta() ? x.storage().get() == t.storage().get() &&
                                                     x.storage_offset() == t.storage_offset()
                                               : x.raw_data() == t.raw_data();
  return overlap_partly(x, t) || same_start ? clone(t.detach()) : t;
}

Selection apart_from(const Tensor& x, Selection s) {
  for (Selection::Index& index : s.index) index.values = without_overlap(x, index.values);
  return s;
}

SavedSelection::SavedSelection(const Selection& s) : rest_(s) {
  for (Selection::Index& index : rest_.index) {
    values_.push_back(save(index.values));
    index.values = Tensor();
  }
}
Selection SavedSelection::restore(const Backward& b) const {
  Selection s = rest_;
  for (std::size_t k = 0; k < values_.size(); ++k) s.index[k].values = b.saved(values_[k]);
  return s;
}

Tensor stepped(const Tensor& x, const std::vector<ViewStep>& steps) {
  Tensor view = x;
  for (const ViewStep& step : steps) {
    if (step.inserts) {
      Shape sizes = view.sizes(), strides = view.strides();
      sizes.insert(step.part.dim, 1);
      strides.insert(step.part.dim, 0);
      view = tapestry::detail::raw_view(view, sizes, strides, view.storage_offset());
    } else {
      view = raw_part(view, step.part);
    }
  }
  return view;
}

void read_at(const char* op, const Tensor& x, const Selection& s, const Tensor& y) {
  if (s.sizes.numel() == 0) return;
  const Tensor view = stepped(x, s.steps);
  run_at(op, view, s, y, [&](const Indexed& at) {
    kernels::indexed_read(x.device(), x.dtype(), {.at = at, .x = view, .y = y});
  });
}

void write_at(const char* op, const Tensor& x, const Selection& s, const Tensor& y) {
  if (s.sizes.numel() == 0) return;
  const Tensor view = stepped(x, s.steps);
  if (s.index.empty()) return kernels::copy(x.device(), x.dtype(), planned(view, y));
  run_at(op, view, s, y, [&](const Indexed& at) {
    kernels::indexed_write(x.device(), x.dtype(), {.at = at, .unique = s.unique, .x = view, .y = y});
  });
}

void combine_at(const char* op, kernels::Combine how, const Tensor& x, const Selection& s, const Tensor& y) {
  using kernels::Combine;
  if (s.sizes.numel() == 0) return;
  const Tensor view = stepped(x, s.steps);
  if (s.index.empty()) {  // only index_put with accumulate comes here
    const NoGradGuard no_grad;
    view.add_(y);
    return;
  }
  DType dtype = y.dtype();
  if (dtype == DType::boolean) {  // the sum of bools is their disjunction, and the product their conjunction
    dtype = DType::u8;
    if (how == Combine::sum) how = Combine::maximum;
    if (how == Combine::product) how = Combine::minimum;
  }
  run_at(op, view, s, y, [&](const Indexed& at) {
    kernels::indexed_combine(x.device(), dtype, {.at = at, .op = how, .x = view, .y = y});
  });
}

namespace {

// Records y as a function of x. Its backward calls recorded functions.
template <class F>
void record_moved(const char* op, const Tensor& y, const Tensor& x, F backward) {
  const Tensor *const output = &y, *const input = &x;
  record(op, {&output, 1}, {&input, 1}, std::move(backward), true);
}
constexpr const char* kGradient = "index_backward";

// The indices are checked if `checked_as` is not null.
Tensor taken_as(const char* op, const char* checked_as, const Tensor& x, const Selection& s,
                const Shape& sizes) {
  Tensor y;
  if (s.sizes.numel() == 0) {
    y = zeros(sizes, {x.dtype(), x.device()});
  } else {
    y = empty(sizes, {x.dtype(), x.device()});
    read_at(checked_as, x, s, y.sizes() == s.sizes ? y : view(y, s.sizes));
  }
  if (recording(x))
    record_moved(op, y, x, [saved = SavedSelection(s), from = x.sizes()](Backward& b) {
      b.set(0, taken_backward(b.grad(), saved.restore(b), from));
    });
  return y;
}

// The elements of the view that the steps lead to, as a new tensor.
Tensor copy_of_stepped(const Tensor& x, const std::vector<ViewStep>& steps) {
  Tensor y = copy_of(stepped(x, steps), x.dtype());
  if (recording(x))
    record_moved(kGradient, y, x, [steps, sizes = x.sizes()](Backward& b) {
      b.set(0, stepped_backward(b.grad(), steps, sizes));
    });
  return y;
}

}  // namespace

Tensor taken(const Op& op, const Tensor& x, const Selection& s, const Shape& sizes) {
  return taken_as(op.name, op.name, x, s, sizes);
}
Tensor taken(const Tensor& x, const Selection& s, const Shape& sizes) {
  return taken_as(kGradient, nullptr, x, s, sizes);
}

Tensor stepped_backward(const Tensor& g, const std::vector<ViewStep>& steps, const Shape& sizes) {
  const Tensor dx = zeros(sizes, {g.dtype(), g.device()});
  {
    const NoGradGuard no_grad;
    stepped(dx, steps).copy_(g);
  }
  if (recording(g))
    record_moved(kGradient, dx, g, [steps](Backward& b) { b.set(0, copy_of_stepped(b.grad(), steps)); });
  return dx;
}

Tensor taken_backward(const Tensor& g, const Selection& s, const Shape& sizes) {
  const bool any = s.sizes.numel() > 0;
  const Tensor from = !any || g.sizes() == s.sizes ? g : reshape(g.detach(), s.sizes);
  Tensor dx;
  if (!any) {
    dx = zeros(sizes, {g.dtype(), g.device()});
  } else if (s.unique) {
    dx = zeros(sizes, {g.dtype(), g.device()});
    write_at(nullptr, dx, s, from);
  } else {
    const Tensor sums = zeros(sizes, {accumulation_dtype(g.dtype()), g.device()});
    combine_at(nullptr, kernels::Combine::sum, sums, s, from);
    dx = converted(sums, g.dtype());
  }
  if (recording(g))
    record_moved(kGradient, dx, g, [saved = SavedSelection(s), to = g.sizes()](Backward& b) {
      b.set(0, taken(b.grad(), saved.restore(b), to));
    });
  return dx;
}

Tensor filled_at(const Tensor& x, const Selection& s, const Scalar& value) {
  Tensor y = copy_of(x, x.dtype());
  write_at(nullptr, y, s, full({}, value, {y.dtype(), y.device()}));
  if (recording(x))
    record_moved(kGradient, y, x, [saved = SavedSelection(s)](Backward& b) {
      b.set(0, filled_at(b.grad(), saved.restore(b), 0));
    });
  return y;
}

Tensor put_recorded(const Op& op, const Tensor& x, const Selection& s, const Tensor& y) {
  Tensor result = copy_of(x, x.dtype());
  write_at(op.name, result, s, y);
  if (recording(x, y))
    record(op, result, {&x, &y}, [saved = SavedSelection(s), sizes = y.sizes()](Backward& b) {
      const Selection s = saved.restore(b);
      if (b.needs(0)) b.set(0, filled_at(b.grad(), s, 0));
      if (b.needs(1))
        b.set(1, s.index.empty() ? copy_of_stepped(b.grad(), s.steps) : taken(b.grad(), s, sizes));
    });
  return result;
}

Tensor add_recorded(const Op& op, const Tensor& x, const Selection& s, const Tensor& y) {
  const Tensor sum = copy_of(x, combining_dtype(x.dtype()));
  combine_at(op.name, kernels::Combine::sum, sum, s, y);
  Tensor result = converted(sum, x.dtype());
  if (recording(x, y))
    record(op, result, {&x, &y}, [saved = SavedSelection(s), sizes = y.sizes()](Backward& b) {
      if (b.needs(0)) b.set(0, b.grad());
      if (!b.needs(1)) return;
      const Selection s = saved.restore(b);
      b.set(1, s.index.empty() ? copy_of_stepped(b.grad(), s.steps) : taken(b.grad(), s, sizes));
    });
  return result;
}

void put_in_place(const Op& op, const Tensor& x, const Selection& s, const Tensor& y) {
  in_place(
      op, x, {&y}, [&] { write_at(op.name, x, apart_from(x, s), without_overlap(x, y)); },
      [&](const Tensor& old) { return put_recorded(op, old, apart_from(x, s), y); });
}

void add_in_place(const Op& op, const Tensor& x, const Selection& s, const Tensor& y) {
  in_place(
      op, x, {&y},
      [&] {
        const DType dtype = combining_dtype(x.dtype());
        const Tensor sum = converted(x, dtype);
        combine_at(op.name, kernels::Combine::sum, sum, apart_from(x, s), without_overlap(x, y));
        if (!sum.is_same(x)) kernels::copy(x.device(), x.dtype(), planned(x, sum));
      },
      [&](const Tensor& old) { return add_recorded(op, old, apart_from(x, s), y); });
}

Tensor checked_index(const char* op, const Tensor& x, const Tensor& index) {
  tapestry::detail::check_defined(op, x);
  tapestry::detail::check_defined(op, index, "index");
  check<TypeError>(is_index(index.dtype()), "[", op, "] index is ", index.dtype(), "; indices are integers");
  check<DeviceError>(index.device() == x.device(), "[", op, "] index is on ", index.device(),
                     ", the tensor on ", x.device(), "; move one of them with .to()");
  return converted(index, DType::i64);
}

void check_values(const char* op, const Tensor& x, const Tensor& values, const char* what) {
  tapestry::detail::check_defined(op, values, what);
  check_matches(op, x, values, what);
}

Tensor true_coordinates(const Tensor& x, bool by_dim) {
  const Tensor mask = raw_contiguous(converted(x.detach(), DType::boolean));
  const std::int64_t n = mask.numel(), blocks = (n + kernels::kMaskBlock - 1) / kernels::kMaskBlock;
  const Tensor starts = empty({blocks + 1}, {DType::i64, x.device()});
  kernels::mask_starts(x.device(), DType::boolean, {.n = n, .mask = mask, .starts = starts});
  const std::int64_t count = n == 0 ? 0 : starts[blocks].item<std::int64_t>();
  Tensor coordinates =
      empty(by_dim ? Shape{x.dim(), count} : Shape{count, x.dim()}, {DType::i64, x.device()});
  kernels::MaskCoordinatesArgs args{.n = n,
                                    .ndim = x.dim(),
                                    .sizes = {},
                                    .mask = mask,
                                    .starts = starts,
                                    .coordinates = coordinates,
                                    .element_stride = by_dim ? 1 : x.dim(),
                                    .dim_stride = by_dim ? count : 1};
  for (int d = 0; d < x.dim(); ++d) args.sizes[d] = x.sizes()[d];
  if (x.dim() > 0 && count > 0) kernels::mask_coordinates(x.device(), DType::boolean, args);
  return coordinates;
}

Tensor element_like(const Op& op, const Tensor& x, const Scalar& value) {
  return full({}, as_element(op.name, value, x.dtype()), {x.dtype(), x.device()});
}

}  // namespace tapestry::autograd
