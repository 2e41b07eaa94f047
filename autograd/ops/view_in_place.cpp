// The methods that change the shape and strides of a tensor, or end its history, in place.
#include "tapestry/autograd/internal/stale_view.h"
#include "tapestry/autograd/node.h"
#include "tapestry/autograd/ops/view.h"
#include "tapestry/autograd/tape.h"

namespace tapestry {
namespace {

using autograd::record_of;

// Gives `target` the shape, strides and history of view(t), where t is another handle with the old ones.
template <class View>
const Tensor& become(const char* op, const Tensor& target, const View& view) {
  detail::check_defined(op, target, "the tensor to change");
  const bool recorded = autograd::needs_grad(target);
  check<AutogradError>(!recorded || !record_of(target)->fn->is_leaf(), "[", op,
                       "] changes in place a leaf of shape ", target.sizes(),
                       " that requires gradients; use the operation without the underscore");
  if (recorded) autograd::check_current_view(op, "input", 0, target);
  // A change without a record would leave a history whose gradients have the old shape.
  const EnableGradGuard enable_grad;
  const Tensor y = view(autograd::alias(target));
  TensorImpl& t = *target.impl();
  t.offset = y.storage_offset();
  t.sizes = y.sizes();
  t.strides = y.strides();
  t.numel = y.numel();
  t.row_major = y.is_contiguous();
  target.storage()->bump_version();  // what backward has saved would have the new shape
  if (recorded) {
    const autograd::Record& old = *record_of(target);
    const bool was_view = old.is_view, retained = static_cast<bool>(old.retained);
    auto* const record = new autograd::Record;
    record->fn = record_of(y)->fn;
    record->output = record_of(y)->output;
    autograd::set_record(target, record);
    if (was_view) autograd::mark_view(target);
    if (retained) target.retain_grad();
  }
  return target;
}

}  // namespace

const Tensor& Tensor::squeeze_() const {
  return become("squeeze_", *this, [](const Tensor& t) { return tapestry::squeeze(t); });
}
const Tensor& Tensor::squeeze_(std::int64_t dim) const {
  return become("squeeze_", *this, [&](const Tensor& t) { return tapestry::squeeze(t, dim); });
}
const Tensor& Tensor::unsqueeze_(std::int64_t dim) const {
  return become("unsqueeze_", *this, [&](const Tensor& t) { return tapestry::unsqueeze(t, dim); });
}
const Tensor& Tensor::transpose_(std::int64_t a, std::int64_t b) const {
  return become("transpose_", *this, [&](const Tensor& t) { return tapestry::transpose(t, a, b); });
}
const Tensor& Tensor::t_() const {
  return become("t_", *this, [](const Tensor& t) { return t.t(); });
}
const Tensor& Tensor::as_strided_(const Shape& sizes, const Shape& strides,
                                  std::optional<std::int64_t> storage_offset) const {
  return become("as_strided_", *this,
                [&](const Tensor& t) { return tapestry::as_strided(t, sizes, strides, storage_offset); });
}

const Tensor& Tensor::detach_() const {
  detail::check_defined("detach_", *this);
  const autograd::Record* const record = record_of(*this);
  if (!record) return *this;
  if (record->fn->is_leaf()) return set_requires_grad(false);
  check<AutogradError>(!record->is_view, "[detach_] a view of shape ", sizes(),
                       " cannot be detached in place; use detach()");
  autograd::set_record(*this, nullptr);
  return *this;
}

}  // namespace tapestry
