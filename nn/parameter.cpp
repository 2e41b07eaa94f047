#include "tapestry/nn/parameter.h"

namespace tapestry::nn {

TensorSlot::TensorSlot(std::string name, Tensor tensor)
    : state_(std::make_shared<State>(State{std::move(name), {std::move(tensor)}})) {}

const Tensor& TensorSlot::none() {
  static const Tensor undefined;
  return undefined;
}

void TensorSlot::no_replica(int index) const {
  fail<IndexError>("[Parameter] replica ", index, " of '", state_->name, "' was requested, but the slot has ",
                   replicas(), "; replicate the module before a context with this replica index uses it");
}

const Tensor& TensorSlot::replica(int index) const {
  if (!state_) return none();
  if (index < 0 || index >= replicas()) no_replica(index);
  return state_->tensors[static_cast<std::size_t>(index)];
}

void TensorSlot::set_replica(int index, const Tensor& tensor) {
  check(state_ != nullptr,
        "[Parameter] this handle has no slot; only a registered parameter or buffer can be set");
  detail::check_defined("Parameter", tensor, "the new tensor");
  if (index < 0 || index >= replicas()) no_replica(index);
  state_->tensors[static_cast<std::size_t>(index)] = tensor;
}

void TensorSlot::set_replicas(std::vector<Tensor> tensors) {
  check(state_ != nullptr,
        "[Parameter] this handle has no slot; only a registered parameter or buffer can be set");
  check(!tensors.empty(), "[Parameter] '", state_->name,
        "' needs at least one replica; pass one tensor or more");
  for (const Tensor& t : tensors) detail::check_defined("Parameter", t, "a replica");
  state_->tensors = std::move(tensors);
}

namespace {
bool is_dense(const Tensor& t) { return t.is_contiguous() || t.is_contiguous(MemoryFormat::channels_last); }
}  // namespace

Parameter::Parameter(std::string name, const Tensor& tensor)
    : TensorSlot(std::move(name), is_dense(tensor) ? tensor.detach() : tensor.detach().contiguous()) {
  const Tensor& own = replica(0);
  if (is_floating(own.dtype())) own.set_requires_grad(true);
}

const Parameter& Parameter::requires_grad_(bool on) const {
  for (int r = 0; r < replicas(); ++r) replica(r).set_requires_grad(on);
  return *this;
}

}  // namespace tapestry::nn
