#include "tapestry/nn/parameter.h"

#include <algorithm>
#include <vector>

#include "tapestry/core/memory_record.h"
#include "tapestry/nn/internal/stored.h"

namespace tapestry::nn {

// What a thread has computed for one slot and replica. The tensor is a member, so that tensor() can return a
// reference to it. Each thread has its own, because several threads may call a module at the same time.
struct TensorSlot::Computed {
  std::weak_ptr<State> slot;
  int replica = 0;
  int calls = 0;  // ComputedTensors that exist for it
  Tensor tensor;
};

TensorSlot::TensorSlot(std::string name, Tensor tensor)
    : state_(std::make_shared<State>(State{std::move(name), {std::move(tensor)}})) {
  tag_memory(state_->tensors[0], MemoryKind::buffers);  // Parameter's constructor corrects it
}

TensorSlot TensorSlot::computed_slot(std::string name, std::function<Tensor()> compute) {
  TensorSlot slot;
  slot.state_ = std::make_shared<State>(State{std::move(name), {}, std::move(compute)});
  return slot;
}

Parameter Parameter::computed(std::string name, std::function<Tensor()> compute) {
  check(static_cast<bool>(compute), "[Parameter] the function that computes '", name,
        "' is empty; pass a function that can be called");
  Parameter slot;
  slot.TensorSlot::operator=(computed_slot(std::move(name), std::move(compute)));
  return slot;
}

// The entry of this thread and replica. A new entry replaces those of slots that exist no more.
TensorSlot::Computed& TensorSlot::computed_entry(const std::shared_ptr<State>& state) {
  static thread_local std::vector<std::unique_ptr<Computed>> entries;  // pointers keep addresses
  const int replica = current_context().replica;
  for (const auto& e : entries)
    if (e->replica == replica && !e->slot.owner_before(state) && !state.owner_before(e->slot)) return *e;
  std::erase_if(entries, [](const auto& e) { return e->slot.expired(); });
  entries.push_back(std::make_unique<Computed>(Computed{state, replica}));
  return *entries.back();
}

// The tensor of a slot whose list of tensors has none for this replica: the slot is computed or divided.
const Tensor& TensorSlot::other_tensor(int replica) const {
  if (state_->layout && replica >= 0 && replica < replicas()) return state_->layout->read(replica);
  if (!state_->compute) no_replica(replica);
  Computed& entry = computed_entry(state_);
  if (entry.calls == 0) {
    const Tensor result = state_->compute();
    entry.tensor = result;
  }
  return entry.tensor;
}

ComputedTensors::ComputedTensors(const std::vector<Parameter>& slots) : slots_(slots) {
  std::vector<Tensor> tensors(slots.size());  // nothing changes if compute() throws
  for (std::size_t i = 0; i < slots.size(); ++i)
    if (slots[i].is_computed() && TensorSlot::computed_entry(slots[i].state_).calls == 0)
      tensors[i] = slots[i].state_->compute();
  for (std::size_t i = 0; i < slots.size(); ++i) {
    if (!slots[i].is_computed()) continue;
    TensorSlot::Computed& entry = TensorSlot::computed_entry(slots[i].state_);
    if (entry.calls++ == 0) entry.tensor = tensors[i];
  }
}

ComputedTensors::~ComputedTensors() {
  for (const Parameter& slot : slots_) {
    if (!slot.is_computed()) continue;
    TensorSlot::Computed& entry = TensorSlot::computed_entry(slot.state_);
    if (--entry.calls == 0) entry.tensor = {};  // frees the graph of the computation
  }
}

const Tensor& TensorSlot::none() {
  static const Tensor undefined;
  return undefined;
}

void TensorSlot::no_replica(int index) const {
  if (is_computed())
    fail("[Parameter] '", state_->name,
         "' is computed from other parameters and has no replicas; read it with tensor(), and set those "
         "parameters");
  fail<IndexError>("[Parameter] replica ", index, " of '", state_->name, "' was requested, but the slot has ",
                   replicas(), "; replicate the module before a context with this replica index uses it");
}

const Tensor& TensorSlot::replica(int index) const {
  if (!state_) return none();
  if (index < 0 || index >= replicas()) no_replica(index);
  const Tensor& own = state_->tensors[static_cast<std::size_t>(index)];
  return own.defined() ? own : other_tensor(index);
}

void TensorSlot::set_replica(int index, const Tensor& tensor) {
  check(state_ != nullptr,
        "[Parameter] this handle has no slot; only a registered parameter or buffer can be set");
  tapestry::detail::check_defined("Parameter", tensor, "the new tensor");
  if (index < 0 || index >= replicas()) no_replica(index);
  if (state_->layout) {
    tag_memory(tensor, MemoryKind::parameters);
    return state_->layout->set_stored(index, tensor);
  }
  inherit_memory_kind(state_->tensors[static_cast<std::size_t>(index)], tensor);
  state_->tensors[static_cast<std::size_t>(index)] = tensor;
}

const std::shared_ptr<Layout>& TensorSlot::layout() const {
  static const std::shared_ptr<Layout> none;
  return state_ ? state_->layout : none;
}

void TensorSlot::set_layout(std::shared_ptr<Layout> layout) {
  check(state_ != nullptr, "[Parameter] this handle has no slot; only a registered parameter can be divided");
  check(!state_->compute, "[Parameter] '", state_->name,
        "' is computed from other parameters; divide those parameters");
  state_->layout = std::move(layout);
  if (!state_->layout) return;
  for (int r = 0; r < replicas(); ++r) {
    tag_memory(state_->layout->stored(r), MemoryKind::parameters);
    state_->tensors[static_cast<std::size_t>(r)] = {};
  }
}

const TensorSlot::BeforeStep& TensorSlot::before_step() const {
  static const BeforeStep none;
  return state_ ? state_->before_step : none;
}

void TensorSlot::set_before_step(BeforeStep fn) const {
  if (state_) state_->before_step = std::move(fn);
}

void TensorSlot::set_full(int replica, const Tensor& full) {
  check(state_ && state_->layout, "[Parameter] the slot is not sharded; call set_replica() instead");
  if (replica < 0 || replica >= replicas()) no_replica(replica);
  tag_memory(full, MemoryKind::parameters);
  state_->tensors[static_cast<std::size_t>(replica)] = full;
}

void TensorSlot::set_replicas(std::vector<Tensor> tensors) {
  check(state_ != nullptr,
        "[Parameter] this handle has no slot; only a registered parameter or buffer can be set");
  if (is_computed()) no_replica(0);
  check(!state_->layout, "[Parameter] '", state_->name,
        "' is sharded, so its replicas cannot be replaced; replicate the module before it is sharded");
  check(!tensors.empty(), "[Parameter] '", state_->name,
        "' needs at least one replica; pass one tensor or more");
  for (const Tensor& t : tensors) {
    tapestry::detail::check_defined("Parameter", t, "a replica");
    inherit_memory_kind(state_->tensors[0], t);
  }
  state_->tensors = std::move(tensors);
}

namespace {
bool is_dense(const Tensor& t) { return t.is_contiguous() || t.is_contiguous(MemoryFormat::channels_last); }
}  // namespace

Parameter::Parameter(std::string name, const Tensor& tensor)
    : TensorSlot(std::move(name), is_dense(tensor) ? tensor.detach() : tensor.detach().contiguous()) {
  const Tensor& own = replica(0);
  tag_memory(own, MemoryKind::parameters);
  if (is_floating(own.dtype())) own.set_requires_grad(true);
}

const Parameter& Parameter::requires_grad_(bool on) const {
  check_not_full("requires_grad_", {}, *this);
  for (int r = 0; r < replicas(); ++r) stored_tensor(*this, r).set_requires_grad(on);
  return *this;
}

}  // namespace tapestry::nn
