#include "tapestry/autograd/tape.h"

#include <memory>
#include <utility>

#include "tapestry/autograd/engine.h"
#include "tapestry/autograd/internal/graph_task.h"
#include "tapestry/autograd/internal/record_observer.h"
#include "tapestry/autograd/internal/stale_view.h"
#include "tapestry/autograd/ops/elementwise.h"
#include "tapestry/autograd/ops/reduce.h"
#include "tapestry/core/internal/capture_state.h"

namespace tapestry::autograd {

bool recording(std::span<const Tensor> inputs) {
  if (!grad_enabled()) return false;
  for (const Tensor& t : inputs)
    if (t.defined() && needs_grad(t)) return true;
  return false;
}

namespace impl {

constinit std::atomic<const RecordObserver*> record_observer{nullptr};

namespace {
// What connect() and CallNote leave for attach(), if there is an observer. A process never loses its
// observer, so attach() finds the one that connect() found, and takes what connect() left.
struct Recording {
  const char* op = nullptr;
  std::span<const Tensor* const> inputs = {};
  const CallDetails* details = nullptr;
};
Recording& being_recorded() {
  thread_local const auto own = std::make_unique<Recording>();  // a pointer, because static TLS is scarce
  return *own;
}

[[gnu::noinline, gnu::cold]] void observe(const RecordObserver& observer, const Node* node,
                                          std::span<const Tensor* const> outputs) {
  static constexpr CallDetails kNone;
  Recording& call = being_recorded();
  const char* const op = std::exchange(call.op, nullptr);
  const auto inputs = std::exchange(call.inputs, {});
  if (!op) return;
  observer.recorded({op, inputs, outputs, call.details ? *call.details : kNone, node,
                     /*in_backward=*/GraphTask::current() != nullptr});
}
}  // namespace

void connect(Edge* edges, std::span<const Tensor* const> inputs, const char* op) {
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const Tensor& t = *inputs[i];
    if (!t.defined() || !needs_grad(t)) continue;
    check_current_view(op, "input", i, t);
    const Record& r = *record_of(t);
    if (r.fn->is_leaf()) {
      const auto& why = static_cast<const LeafNode*>(r.fn.get())->not_recordable;
      check<AutogradError>(!why, "[", op, "] input ", i, ": ", why ? *why : "");
    }
    edges[i].node = r.fn;
    edges[i].output = r.output;
  }
  if (record_observer.load(std::memory_order_relaxed)) [[unlikely]] {
    being_recorded().op = op;
    being_recorded().inputs = inputs;
  }
}

void attach(NodeRef node, OutputSlot* slots, std::span<const Tensor* const> outputs) {
  if (const RecordObserver* observer = record_observer.load(std::memory_order_acquire)) [[unlikely]]
    observe(*observer, node.get(), outputs);
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    const Tensor& t = *outputs[i];
    if (!t.defined() || !is_floating(t.dtype())) continue;
    slots[i].sizes = t.sizes();
    slots[i].dtype = t.dtype();
    slots[i].device = t.device();
    Record& record = slots[i].record;
    record.fn = i + 1 < outputs.size() ? node : std::move(node);
    record.output = static_cast<std::uint32_t>(i);
    record.in_node = true;
    set_record(t, &record);
    if (DetectAnomaly::active()) [[unlikely]] {
      tapestry::detail::refuse_in_capture("DetectAnomaly", "the host reads results; capture without it");
      NoGradGuard no_grad;
      check<AutogradError>(isnan(t.detach()).sum().item<std::int64_t>() == 0, "[", record.fn->name(),
                           "] output ", i, " of shape ", t.sizes(), " has NaN; check its inputs");
    }
  }
}

Tensor connected(const Tensor& t, const Edge& history) {
  Tensor y = t.detach();
  if (!history.node || !is_floating(t.dtype())) return y;
  check<AutogradError>(history.node->output(history.output).sizes == t.sizes(), "[", history.node->name(),
                       "] saved a tensor of shape ", t.sizes(), " as its output ", history.output,
                       ", which has shape ", history.node->output(history.output).sizes,
                       "; save other tensors with save()");
  auto pass_on = [](Backward& b) { b.set(0, b.grad()); };
  Edge* edges;
  OutputSlot* slots;
  NodeRef node = OpNode<decltype(pass_on)>::make("saved", 1, 1, edges, slots, std::move(pass_on), true);
  edges[0] = history;
  if (record_observer.load(std::memory_order_relaxed)) [[unlikely]]
    being_recorded().op = nullptr;  // this node is no operation
  const Tensor* const output = &y;
  attach(std::move(node), slots, {&output, 1});
  return y;
}

}  // namespace impl

void CallNote::enter(const CallDetails& details) {
  details_ = details;
  outer_ = std::exchange(impl::being_recorded().details, &details_);
  entered_ = true;
}
void CallNote::leave() { impl::being_recorded().details = outer_; }

void mark_view(const Tensor& output) {
  Record* r = record_of(output);
  r->is_view = true;
  r->version = output.version();
}

Tensor alias(const Tensor& t) {
  Tensor copy = tapestry::detail::raw_view(t, t.sizes(), t.strides(), t.storage_offset());
  if (const Record* r = record_of(t)) {
    Record* mine = new Record;
    mine->fn = r->fn;
    mine->output = r->output;
    set_record(copy, mine);
  }
  return copy;
}

bool prepare_in_place(const Op& op, const Tensor& target, std::initializer_list<const Tensor*> others) {
  tapestry::detail::check_defined(op.name, target, "the tensor to change");
  if (!grad_enabled()) return false;
  bool needed = needs_grad(target);
  check<AutogradError>(!needed || !record_of(target)->fn->is_leaf(), "[", op.name,
                       "] changes in place a leaf of shape ", target.sizes(),
                       " that requires gradients; do it under NoGradGuard, or out of place");
  check<AutogradError>(
      !needed || !record_of(target)->is_view, "[", op.name, "] changes in place a view of shape ",
      target.sizes(),
      " whose history the tape records; change the whole tensor, use the out-of-place operation and "
      "cat or stack, or do it under NoGradGuard");
  // No gradient flows through a write into an integer tensor. So operands that require gradients matter only
  // if the target is floating-point.
  if (!needed && is_floating(target.dtype())) {
    for (const Tensor* t : others) needed = needed || (t->defined() && needs_grad(*t));
    check<AutogradError>(
        !needed || target.storage()->use_count() == 1, "[", op.name,
        "] writes a tensor that requires gradients into a tensor of shape ", target.sizes(),
        " that shares its memory with another tensor, which would get no gradient; use cat or stack");
  }
  check<AutogradError>(!needed || !target.impl()->inference, "[", op.name,
                       "] would record an in-place change of a tensor of shape ", target.sizes(),
                       " made in inference mode; change a clone() of it, or do it under NoGradGuard");
  return needed;
}

void finish_in_place(const Tensor& target, const Tensor& result) {
  {
    NoGradGuard no_grad;
    target.copy_(result);
  }
  target.storage()->mark_recorded_change();
  const Record* old = record_of(target);
  const bool retained = old && old->retained;
  Record* record = new Record;
  record->fn = record_of(result)->fn;
  record->output = record_of(result)->output;
  set_record(target, record);
  if (retained) target.retain_grad();
}

}  // namespace tapestry::autograd
