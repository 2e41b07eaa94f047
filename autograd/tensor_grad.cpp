// The methods of Tensor that concern gradients.
#include "tapestry/autograd/engine.h"
#include "tapestry/autograd/node.h"
#include "tapestry/autograd/ops/elementwise.h"
#include "tapestry/core/tensor.h"

namespace tapestry {

using autograd::LeafNode;
using autograd::needs_grad;
using autograd::Record;
using autograd::record_of;

namespace {

LeafNode* leaf_of(const Tensor& t) {
  const Record* r = record_of(t);
  return r && r->fn->is_leaf() ? static_cast<LeafNode*>(r->fn.get()) : nullptr;
}

LeafNode* make_leaf(const Tensor& t) {
  Ref<LeafNode> leaf = LeafNode::make(t);
  LeafNode* raw = leaf.get();
  Record* r = new Record;
  r->fn = autograd::NodeRef::adopt(leaf.detach());
  autograd::set_record(t, r);
  t.impl()->leaf = true;
  return raw;
}

}  // namespace

bool Tensor::requires_grad() const { return defined() && needs_grad(*this); }

bool Tensor::is_leaf() const {
  detail::check_defined("is_leaf", *this);
  const Record* r = record_of(*this);
  return !r || r->fn->is_leaf();
}

const Tensor& Tensor::set_requires_grad(bool on) const {
  detail::check_defined("set_requires_grad", *this);
  if (requires_grad() == on) return *this;
  check<AutogradError>(is_leaf(), "[set_requires_grad] a tensor of shape ", sizes(),
                       " is not a leaf, so requires_grad cannot be changed; use detach()");
  check<TypeError>(is_floating(dtype()),
                   "[set_requires_grad] only floating tensors have gradients, this one is ", dtype(),
                   "; convert it with to() first");
  check<AutogradError>(
      !impl_->inference,
      "[set_requires_grad] a tensor made in inference mode cannot require gradients; clone() it "
      "outside");
  LeafNode* leaf = leaf_of(*this);
  (leaf ? leaf : make_leaf(*this))->requires_grad = on;
  return *this;
}

Tensor Tensor::grad() const {
  detail::check_defined("grad", *this);
  const Record* r = record_of(*this);
  if (!r) return {};
  if (const LeafNode* leaf = leaf_of(*this)) return leaf->grad;
  return r->retained ? r->retained->grad : Tensor();
}

void Tensor::set_grad(const Tensor& grad) const {
  detail::check_defined("set_grad", *this);
  check<AutogradError>(is_leaf(), "[set_grad] a tensor of shape ", sizes(),
                       " is not a leaf, so its gradient cannot be set; use retain_grad() or a hook");
  LeafNode* leaf = leaf_of(*this);
  if (!grad.defined()) {
    if (leaf) leaf->grad = {};
    return;
  }
  check<AutogradError>(grad.sizes() == sizes() && grad.dtype() == dtype() && grad.device() == device(),
                       "[set_grad] the gradient is ", grad.dtype(), " ", grad.sizes(), " on ", grad.device(),
                       "; expected ", dtype(), " ", sizes(), " on ", device());
  check<AutogradError>(!grad.is_same(*this),
                       "[set_grad] a tensor cannot be its own gradient; pass a clone()");
  if (!leaf) {
    leaf = make_leaf(*this);
    leaf->requires_grad = false;
  }
  leaf->grad = grad.requires_grad() ? grad.detach() : grad;
}

void Tensor::zero_grad(bool set_to_none) const {
  detail::check_defined("zero_grad", *this);
  LeafNode* leaf = leaf_of(*this);
  if (!leaf || !leaf->grad.defined()) return;
  if (set_to_none) leaf->grad = {};
  else (leaf->grad = leaf->grad.detach()).zero_();  // without the history of a pass with create_graph
}

void Tensor::retain_grad() const {
  check<AutogradError>(requires_grad(),
                       "[retain_grad] a tensor that does not require gradients never gets one; call "
                       "it on a tensor of the graph");
  Record* r = record_of(*this);
  if (r->fn->is_leaf() || r->retained) return;
  r->retained = Ref<autograd::RetainedGrad>::adopt(new autograd::RetainedGrad);
  r->fn->add_hook(
      r->output,
      [cell = r->retained](const Tensor& gradient) {
        cell->grad = cell->grad.defined() ? tapestry::add(cell->grad, gradient) : gradient;
        return Tensor();
      },
      /*last=*/true);
}

Tensor Tensor::detach() const {
  detail::check_defined("detach", *this);
  return detail::raw_view(*this, sizes(), strides(), storage_offset());
}

void Tensor::backward(const Tensor& gradient, bool retain_graph, bool create_graph) const {
  if (create_graph) return autograd::backward({*this}, {.grad_outputs = {gradient}, .create_graph = true});
  autograd::backward({*this}, {gradient}, retain_graph);
}

HookHandle Tensor::register_hook(std::function<Tensor(const Tensor&)> hook) const {
  check<AutogradError>(requires_grad(),
                       "[register_hook] a tensor that does not require gradients never gets one; "
                       "call it on a tensor of the graph");
  check(static_cast<bool>(hook), "[register_hook] the hook is empty; pass something that can be called");
  const Record* r = record_of(*this);
  return r->fn->add_hook(r->output, std::move(hook));
}

HookHandle Tensor::register_post_accumulate_grad_hook(std::function<void(const Tensor&)> hook) const {
  LeafNode* leaf = requires_grad() ? leaf_of(*this) : nullptr;
  check<AutogradError>(leaf != nullptr,
                       "[register_post_accumulate_grad_hook] needs a leaf that requires gradients; "
                       "use register_hook() on other tensors");
  check(static_cast<bool>(hook),
        "[register_post_accumulate_grad_hook] the hook is empty; pass something that can be called");
  return leaf->add_post_hook(std::move(hook));
}

}  // namespace tapestry
