#include "tapestry/autograd/node.h"

#include <algorithm>

#include "tapestry/autograd/engine.h"
#include "tapestry/autograd/internal/record_observer.h"
#include "tapestry/autograd/ops/arithmetic.h"
#include "tapestry/autograd/ops/creation.h"
#include "tapestry/autograd/ops/view.h"
#include "tapestry/autograd/tape.h"
#include "tapestry/core/memory_record.h"
#include "tapestry/core/tls_model.h"

namespace tapestry::autograd {

std::uint64_t next_sequence() {
  static std::atomic<std::uint64_t> counter{0};
  return counter.fetch_add(1, std::memory_order_relaxed);
}

// ---- SavedTensor ----

namespace {
// A saved tensor may be a parameter whose memory was released after the forward pass. The source is asked
// even if the memory exists, because a transfer may still be filling it.
void refill(const Tensor& t) {
  Storage& storage = *t.storage();
  if (storage.source()) [[unlikely]]
    storage.source()->refill(storage);
}
}  // namespace

// The result of the pack hook, and the properties that the unpacked tensor must have. Backward passes that
// tensor to kernels, which rely on its shape and on a dense layout.
struct SavedTensor::Packed {
  std::shared_ptr<void> data;
  SavedTensorHooks::Unpack unpack;
  Shape sizes;
  DType dtype;
  Device device;
  MemoryFormat format;
  bool dense;
  Edge history;  // of an input that needs a gradient

  Tensor restored(const char* op) const {
    Tensor t = unpack(data);
    tapestry::detail::check_defined(op, t, "what the unpack hook of saved tensors returned");
    refill(t);
    check<AutogradError>(t.sizes() == sizes && t.dtype() == dtype && t.device() == device, "[", op,
                         "] the unpack hook of saved tensors returned a tensor of ", t.dtype(), " ",
                         t.sizes(), " on ", t.device(), "; expected what was packed, ", dtype, " ", sizes,
                         " on ", device);
    return dense ? contiguous(t, format) : t;
  }
};
void SavedTensor::PackedDeleter::operator()(Packed* p) const { delete p; }

SavedTensor::SavedTensor(Tensor tensor, const Tensor& source) {
  if (!source.defined()) return;
  check<AutogradError>(
      !source.impl()->inference, "[save] a tensor of shape ", source.sizes(),
      " made in inference mode cannot be saved for backward; clone() it outside, or use NoGradGuard");
  if (SavedTensorHooks* hooks = SavedTensorHooks::current()) {
    NoGradGuard no_grad;
    const MemoryFormat format = source.memory_format();
    packed_.reset(new Packed{hooks->pack(source.detach()),
                             hooks->unpack,
                             source.sizes(),
                             source.dtype(),
                             source.device(),
                             format,
                             source.is_contiguous(format),
                             {}});
    // The record of an output does not exist yet.
    if (needs_grad(source)) packed_->history = {record_of(source)->fn, record_of(source)->output};
  } else {
    tag_memory(source, MemoryKind::activations);
    version_ = tensor.version();
    tensor_ = std::move(tensor);
  }
}

SavedTensor save(const Tensor& input) { return SavedTensor(input, input); }

SavedTensor save_output(const Tensor& output, std::uint32_t index) {
  SavedTensor saved(output.defined() ? output.detach() : output, output);
  saved.output_ = index;
  return saved;
}

Edge Backward::history_of(const SavedTensor& s) const {
  if (s.output_ != SavedTensor::kNotOutput) return {NodeRef(&node_), s.output_};
  return s.packed_->history;
}

Tensor Backward::saved(const SavedTensor& s) const {
  if (s.packed_) {
    Tensor t = s.packed_->restored(node_.name_);
    return create_graph_ ? impl::connected(t, history_of(s)) : t;
  }
  // The source gives the tensor a new version if it fills the memory with other values than before.
  if (s.tensor_.defined()) refill(s.tensor_);
  if (s.tensor_.defined() && s.tensor_.version() != s.version_) [[unlikely]]
    fail<AutogradError>("[", node_.name_, "] backward needs a ", s.tensor_.dtype(), " tensor of shape ",
                        s.tensor_.sizes(), " that was changed in place after the forward pass (version ",
                        s.tensor_.version(), ", saved at version ", s.version_,
                        "); change a clone() of it, or use the out-of-place operation");
  // A saved input has its history. An output is saved without one.
  return create_graph_ && s.output_ != SavedTensor::kNotOutput ? impl::connected(s.tensor_, history_of(s))
                                                               : s.tensor_;
}

Tensor Backward::grad_or_zeros(std::uint32_t output) const {
  const OutputSlot& slot = node_.outputs_[output];
  return slot.gradient.defined() ? slot.gradient : zeros(slot.sizes, {slot.dtype, slot.device});
}

// ---- Record ----

std::string Record::note() const {
  if (!fn->is_leaf()) return std::string("grad_fn=<") + fn->name() + ">";
  return static_cast<const LeafNode*>(fn.get())->requires_grad ? "requires_grad=True" : "";
}

void Record::release() noexcept {
  if (in_node) {
    retained = {};
    const NodeRef last = std::move(fn);  // its destruction may destroy the node, and with it this record
    return;
  }
  if (fn->is_leaf()) static_cast<LeafNode*>(fn.get())->forget_owner();
  delete this;
}

// ---- Node ----

Node::Node(const char* name, std::uint64_t sequence, Edge* edges, std::uint32_t num_edges,
           OutputSlot* outputs, std::uint32_t num_outputs)
    : outputs_(outputs),
      num_edges_(num_edges),
      num_outputs_(num_outputs),
      name_(name),
      sequence_(sequence),
      edges_(edges),
      context_(current_context()) {}

Node::~Node() {
  if (const RecordObserver* observer = impl::record_observer.load(std::memory_order_acquire)) [[unlikely]]
    observer->destroyed(this);
  for (std::uint32_t i = 0; i < num_edges_; ++i) edges_[i].~Edge();
  for (std::uint32_t i = 0; i < num_outputs_; ++i) outputs_[i].~OutputSlot();
}

void Node::dispose(Node* node) noexcept {
  // Destroying a node releases the nodes of its inputs. If that destroys them too, they are added to this
  // list, and the loop of the outermost call destroys them.
  TAPESTRY_HOT_TLS static thread_local constinit Node* waiting = nullptr;
  TAPESTRY_HOT_TLS static thread_local constinit bool draining = false;
  node->next_disposed_ = waiting;
  waiting = node;
  if (draining) return;
  draining = true;
  while (Node* n = waiting) {
    waiting = n->next_disposed_;
    const bool leaf = n->leaf_;
    n->~Node();
    if (leaf) ::operator delete(n);
    else slab_free(n);
  }
  draining = false;
}

HookHandle Node::add_hook(std::uint32_t output, std::function<Tensor(const Tensor&)> hook, bool last) {
  return hooks_.add({output, last, std::move(hook)});
}

void Node::run_hooks() {
  const auto hooks = hooks_.hooks();
  for (bool last : {false, true})
    for (const auto& [id, h] : *hooks) {
      Tensor& gradient = outputs_[h->output].gradient;
      if (h->last != last || !gradient.defined()) continue;
      Tensor replacement = h->fn(gradient);
      if (!replacement.defined()) continue;
      const OutputSlot& slot = outputs_[h->output];
      check<AutogradError>(replacement.sizes() == slot.sizes && replacement.dtype() == slot.dtype &&
                               replacement.device() == slot.device,
                           "[", name_, "] a hook returned a gradient of ", replacement.dtype(), " ",
                           replacement.sizes(), " on ", replacement.device(), "; expected ", slot.dtype, " ",
                           slot.sizes, " on ", slot.device);
      gradient = std::move(replacement);
      outputs_[h->output].owns_gradient = false;
    }
}

// ---- LeafNode ----

Ref<LeafNode> LeafNode::make(const Tensor& leaf) {
  constexpr std::size_t at =
      (sizeof(LeafNode) + alignof(OutputSlot) - 1) / alignof(OutputSlot) * alignof(OutputSlot);
  char* memory = static_cast<char*>(::operator new(at + sizeof(OutputSlot)));
  OutputSlot* output = new (memory + at) OutputSlot;
  output->sizes = leaf.sizes();
  output->dtype = leaf.dtype();
  output->device = leaf.device();
  return Ref<LeafNode>::adopt(new (memory) LeafNode(leaf, output));
}

LeafNode::LeafNode(const Tensor& leaf, OutputSlot* output)
    : Node("accumulate_grad", UINT64_MAX, nullptr, 0, output, 1), owner_(leaf.impl()) {
  leaf_ = true;
}

Tensor LeafNode::owner() {
  std::lock_guard lock(mutex_);
  if (!owner_) return {};
  // If another thread is destroying the tensor, its reference count is already zero, and must stay zero.
  int refs = owner_->refs.load(std::memory_order_relaxed);
  while (refs > 0 && !owner_->refs.compare_exchange_weak(refs, refs + 1, std::memory_order_acq_rel)) {
  }
  return refs > 0 ? Tensor(Ref<TensorImpl>::adopt(owner_)) : Tensor();
}

void LeafNode::forget_owner() {
  std::lock_guard lock(mutex_);
  owner_ = nullptr;
}

HookHandle LeafNode::add_post_hook(std::function<void(const Tensor&)> hook) {
  return post_hooks_.add(std::move(hook));
}

void LeafNode::run(Backward&) {
  if (!requires_grad) return;
  Tensor incoming = std::move(outputs_[0].gradient);
  if (!incoming.defined()) {
    // The node that computed the gradient added it to `grad`; see GraphTask::sum_to_extend().
  } else if (grad.defined() && grad_enabled()) {
    grad = add(grad, incoming);  // in a pass with create_graph
  } else if (grad.defined()) {
    grad.add_(incoming);
  } else {
    // The incoming gradient becomes grad() without a copy if it is dense and has no other owner. A broadcast
    // gradient (stride 0) is not dense.
    const bool ours = incoming.impl()->refs.load(std::memory_order_acquire) == 1 &&
                      incoming.storage()->use_count() == 1 &&
                      static_cast<std::size_t>(incoming.nbytes()) == incoming.storage()->bytes();
    const bool dense = incoming.is_contiguous() || incoming.is_contiguous(MemoryFormat::channels_last);
    grad = ours && dense ? std::move(incoming) : dense ? incoming.clone() : incoming.contiguous();
  }
  tag_memory(grad, MemoryKind::gradients);
  if (post_hooks_.empty()) return;
  const Tensor leaf = owner();
  if (!leaf.defined()) return;
  const auto hooks = post_hooks_.hooks();
  for (const auto& [id, hook] : *hooks) (*hook)(leaf);
}

}  // namespace tapestry::autograd
