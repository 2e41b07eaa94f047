// x[indices] and x[indices] = values, with integers, slices, None, Ellipsis, bools and tensors as indices.
#include "tapestry/autograd/internal/autocast.h"
#include "tapestry/autograd/ops/arithmetic.h"
#include "tapestry/autograd/ops/creation.h"
#include "tapestry/autograd/ops/index.h"
#include "tapestry/autograd/ops/internal/common.h"
#include "tapestry/autograd/ops/internal/indexed.h"
#include "tapestry/autograd/ops/view.h"
#include "tapestry/core/internal/capture_state.h"

namespace tapestry {

using namespace autograd;  // NOLINT: this file is autograd's
using indexing::TensorIndex;

namespace {

const Op kIndex{"index", Grad::twice, kAllDTypes};
const Op kIndexPut{"index_put", Grad::twice, kAllDTypes};

using Kind = TensorIndex::Kind;

// Translates indices to a Selection. Integers, slices and None become steps of a view. Tensors and bools
// become index tensors of dimensions of this view.
class Parser {
 public:
  Parser(const Op& op, const Tensor& x, const std::vector<TensorIndex>& indices)
      : op_(op), view_(x.detach()) {
    check(!indices.empty(), "[", op.name,
          "] the list of indices is empty; pass {\"...\"} for the whole tensor");
    std::int64_t taken = 0, dots = 0;
    for (const TensorIndex& index : indices) {
      taken += dims_of(index);
      dots += index.kind() == Kind::ellipsis;
    }
    check<IndexError>(taken <= x.dim(), "[", op.name, "] the indices are for ", taken,
                      " dimensions, but the tensor of shape ", x.sizes(), " has ", x.dim(), "; pass fewer");
    check<IndexError>(dots <= 1, "[", op.name,
                      "] more than one index is an ellipsis; use Slice() for the others");
    for (const TensorIndex& index : indices) apply(index, x.dim() - static_cast<int>(taken));
    if (advanced_.empty()) s_.sizes = view_.sizes();
    else select();
  }
  const Selection& selection() const { return s_; }

 private:
  struct Advanced {
    int dim;
    Tensor values;
  };

  std::int64_t dims_of(const TensorIndex& index) const {
    if (index.kind() == Kind::integer || index.kind() == Kind::slice) return 1;
    if (index.kind() != Kind::tensor) return 0;
    tapestry::detail::check_defined(op_.name, index.tensor(), "an index");
    return index.tensor().dtype() == DType::boolean ? index.tensor().dim() : 1;
  }

  void step(const ViewStep& step) {
    s_.steps.push_back(step);
    view_ = stepped(view_, {step});
  }

  void apply(const TensorIndex& index, int left_over) {
    switch (index.kind()) {
      case Kind::none:
        return insert();
      case Kind::ellipsis:
        dim_ += left_over;
        return;
      case Kind::integer:
        return take(index.integer());
      case Kind::slice:
        return take(index.slice());
      case Kind::boolean:
        return take(index.integer() != 0);
      case Kind::tensor:
        return take(index.tensor());
    }
  }

  void insert() {
    check(view_.dim() < kMaxDims, "[", op_.name, "] None makes more than ", kMaxDims, " dimensions; ",
          kMaxDims, " is the limit");
    step({.part = {.dim = dim_, .start = 0, .length = 1}, .inserts = true});
    ++dim_;
  }

  void take(std::int64_t index) {
    const std::int64_t size = view_.sizes()[dim_];
    check<IndexError>(index >= -size && index < size, "[", op_.name, "] index ", index, " is outside [",
                      -size, ", ", size, ") for dimension ", dim_, " of a tensor of shape ", view_.sizes(),
                      "; correct it");
    step({.part = {.dim = dim_, .start = index < 0 ? index + size : index, .length = 1, .drop = true}});
  }

  void take(const indexing::Slice& slice) {
    const std::int64_t size = view_.sizes()[dim_], stride = slice.step.value_or(1);
    check(stride >= 1, "[", op_.name, "] the step of a slice is ", stride, "; use 1 or more");
    const Part part = slice_part(dim_, size, slice.start, slice.stop, stride);
    if (part.start != 0 || part.length != size) step({.part = part});
    ++dim_;
  }

  // A bool inserts a dimension and selects all or nothing of it.
  void take(bool all) {
    insert();
    advanced_.push_back({dim_ - 1, zeros({all ? 1 : 0}, {DType::i64, view_.device()})});
  }

  void take(const Tensor& index) {
    check<TypeError>(index.dtype() != DType::u8, "[", op_.name,
                     "] an index tensor is uint8; convert it to bool for a mask, or to int64 for indices");
    check<TypeError>(is_integral(index.dtype()), "[", op_.name, "] an index tensor is ", index.dtype(),
                     "; indices are integers or bools");
    check<DeviceError>(index.device() == view_.device() || index.device().is_cpu(), "[", op_.name,
                       "] an index tensor is on ", index.device(), ", the tensor on ", view_.device(),
                       "; move one of them with .to()");
    const bool is_mask = index.dtype() == DType::boolean;
    if (index.dim() == 0 || is_mask) tapestry::detail::check_host_reads(op_.name, index);
    if (index.dim() == 0) return is_mask ? take(index.item<bool>()) : take(index.item<std::int64_t>());
    const NoGradGuard no_grad;
    const Tensor local = index.to(view_.device());
    if (!is_mask) {
      advanced_.push_back({dim_++, converted(local, DType::i64)});
      return;
    }
    for (int i = 0; i < index.dim(); ++i)
      check<IndexError>(index.sizes()[i] == view_.sizes()[dim_ + i], "[", op_.name, "] a mask has shape ",
                        index.sizes(), ", but dimension ", dim_ + i, " of the tensor of shape ",
                        view_.sizes(), " has size ", view_.sizes()[dim_ + i],
                        "; a mask has the sizes of the dimensions that it stands for");
    const Tensor coordinates = true_coordinates(local, true);
    for (int i = 0; i < index.dim(); ++i) advanced_.push_back({dim_++, coordinates[i]});
    ++masks_;
    mask_dims_ += index.dim();
  }

  // Places the broadcast shape of the index tensors among the other dimensions.
  void select() {
    Shape common;
    for (const Advanced& a : advanced_) common = broadcast_shapes(op_.name, common, a.values.sizes());
    bool adjacent = true;
    for (std::size_t k = 1; k < advanced_.size(); ++k)
      adjacent &= advanced_[k].dim == advanced_[k - 1].dim + 1;
    const int before = adjacent ? advanced_.front().dim : 0;
    check(view_.dim() - static_cast<int>(advanced_.size()) + common.size() <= kMaxDims, "[", op_.name,
          "] the result would have more than ", kMaxDims, " dimensions; index tensors of shape ", common,
          " replace dimensions of a tensor of shape ", view_.sizes());
    const auto place_common = [&] {
      for (const std::int64_t size : common) {
        s_.sizes.push_back(size);
        s_.dims.push_back(-1);
      }
    };
    std::size_t next = 0;
    for (int d = 0; d < view_.dim(); ++d) {
      if (d == before) place_common();
      if (next < advanced_.size() && advanced_[next].dim == d) {
        ++next;
        continue;
      }
      s_.sizes.push_back(view_.sizes()[d]);
      s_.dims.push_back(d);
    }
    for (const Advanced& a : advanced_) {
      const Tensor& t = a.values;
      Shape sizes = Shape::filled(s_.sizes.size(), 1), strides = Shape::filled(s_.sizes.size(), 0);
      const int first = before + common.size() - t.dim();
      for (int i = 0; i < t.dim(); ++i) {
        sizes[first + i] = t.sizes()[i];
        strides[first + i] = t.strides()[i];
      }
      s_.index.push_back({tapestry::detail::raw_view(t, sizes, strides, t.storage_offset()), a.dim});
    }
    s_.wraps = masks_ == 0 || mask_dims_ != static_cast<int>(advanced_.size());
    s_.unique = masks_ == 1 && mask_dims_ == static_cast<int>(advanced_.size());
  }

  const Op& op_;
  Tensor view_;
  int dim_ = 0, masks_ = 0, mask_dims_ = 0;
  std::vector<Advanced> advanced_;
  Selection s_;
};

// `values` as index_put writes them: leading dimensions of size 1 that the selection lacks are dropped, and
// the rest broadcasts to it.
Tensor values_for(const Tensor& x, const Selection& s, const Tensor& values) {
  tapestry::detail::check_defined(kIndexPut.name, values, "values");
  Tensor v = values;
  if (v.dim() == 0 && v.device() != x.device()) v = v.to(x.device());
  if (s.index.empty()) v = v.to(x.dtype());
  check_values(kIndexPut.name, x, v, "values");
  while (v.dim() > s.sizes.size() && v.sizes()[0] == 1) v = v.squeeze(0);
  bool fits = v.dim() <= s.sizes.size();
  for (int i = 1; fits && i <= v.dim(); ++i) {
    const std::int64_t size = v.sizes()[v.dim() - i];
    fits = size == 1 || size == s.sizes[s.sizes.size() - i];
  }
  check(fits, "[index_put] values of shape ", values.sizes(),
        " do not broadcast to the selected elements, of shape ", s.sizes, "; give them that shape");
  return expand(v, s.sizes);
}

Selection selection_of(const Op& op, const Tensor& x, const std::vector<TensorIndex>& indices) {
  tapestry::detail::check_defined(op.name, x);
  return Parser(op, x, indices).selection();
}

}  // namespace

namespace indexing {

TensorIndex::TensorIndex(const char* dots) : kind_(Kind::ellipsis) {
  (check)(dots && std::string_view(dots) == "...", "[index] the text '", dots ? dots : "(null)",
          "' is not an index; the only text is \"...\"");
}

}  // namespace indexing

Tensor index(const Tensor& x, const std::vector<TensorIndex>& indices) {
  const Selection s = selection_of(kIndex, x, indices);
  if (s.index.empty()) {
    Tensor y = s.steps.empty() ? tapestry::detail::raw_view(x, x.sizes(), x.strides(), x.storage_offset())
                               : stepped(x, s.steps);
    if (recording(x)) {
      record(kIndex, y, {&x}, [steps = s.steps, sizes = x.sizes()](Backward& b) {
        b.set(0, stepped_backward(b.grad(), steps, sizes));
      });
      mark_view(y);
    }
    return y;
  }
  return taken(kIndex, x, s, s.sizes);
}
Tensor Tensor::index(const std::vector<TensorIndex>& indices) const {
  return tapestry::index(*this, indices);
}
Tensor Tensor::operator[](const Tensor& index) const { return tapestry::index(*this, {index}); }

Tensor index_put(const Tensor& x, const std::vector<TensorIndex>& indices, const Tensor& values,
                 bool accumulate) {
  if (const autograd::Autocast cast(kIndexPut, x, values); cast)
    return index_put(cast(x), indices, cast(values), accumulate);
  const Selection s = selection_of(kIndexPut, x, indices);
  const Tensor v = values_for(x, s, values);
  return accumulate ? add_recorded(kIndexPut, x, s, v) : put_recorded(kIndexPut, x, s, v);
}
Tensor Tensor::index_put(const std::vector<TensorIndex>& indices, const Tensor& values,
                         bool accumulate) const {
  return tapestry::index_put(*this, indices, values, accumulate);
}
const Tensor& Tensor::index_put_(const std::vector<TensorIndex>& indices, const Tensor& values,
                                 bool accumulate) const {
  const Selection s = selection_of(kIndexPut, *this, indices);
  const Tensor v = values_for(*this, s, values);
  if (accumulate) add_in_place(kIndexPut, *this, s, v);
  else put_in_place(kIndexPut, *this, s, v);
  return *this;
}
const Tensor& Tensor::index_put_(const std::vector<TensorIndex>& indices, const Scalar& value) const {
  const Selection s = selection_of(kIndexPut, *this, indices);
  const Scalar element = as_element(kIndexPut.name, value, dtype());
  put_in_place(kIndexPut, *this, s, full({}, element, {dtype(), device()}));
  return *this;
}

}  // namespace tapestry
