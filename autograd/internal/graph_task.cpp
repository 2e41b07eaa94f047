#include "tapestry/autograd/internal/graph_task.h"

#include <algorithm>
#include <optional>
#include <string>

#include "tapestry/autograd/internal/delay.h"
#include "tapestry/autograd/internal/left_out.h"
#include "tapestry/autograd/internal/nested.h"
#include "tapestry/autograd/ops/creation.h"
#include "tapestry/autograd/ops/elementwise.h"
#include "tapestry/autograd/ops/reduce.h"
#include "tapestry/core/internal/capture_state.h"
#include "tapestry/core/stream.h"
#include "tapestry/core/timeline.h"
#include "tapestry/core/tls_model.h"

namespace tapestry::autograd {
namespace {

TAPESTRY_HOT_TLS thread_local constinit GraphTask* current_task = nullptr;
TAPESTRY_HOT_TLS thread_local constinit const NodeObserver* current_observer = nullptr;
std::atomic<std::uint64_t> next_pass{1};

// Orders the heap of ready nodes: the newest node runs first. Leaves have the highest sequence number, so
// they run before all others.
bool older(const Node* a, const Node* b) { return a->sequence() < b->sequence(); }

// Keeps the memory of `t` from being reused before the current stream has finished the work submitted to it.
void record_use_on_current_stream(const Tensor& t) {
  if (t.defined() && t.device().is_cuda()) record_stream(t, current_stream(t.device()));
}

// The names of the operations that have listed themselves. Names are compared by address, since a user's
// Function may have any name.
struct Listed {
  std::vector<const char*> one, masked;
};
Listed& listed() {
  static Listed& all = *new Listed;
  return all;
}
bool has(const std::vector<const char*>& names, const Node& node) {
  return std::find(names.begin(), names.end(), node.name()) != names.end();
}

}  // namespace

TakesOne::TakesOne(const Op& op) { listed().one.push_back(op.name); }
TakesMasked::TakesMasked(const Op& op) { listed().masked.push_back(op.name); }
bool gradient_is_one() { return current_task && current_task->gradient_is_one(); }
bool gradient_is_masked() { return current_task && current_task->gradient_is_masked(); }
bool masks_gradient(std::uint32_t input) { return current_task && current_task->masks_gradient(input); }

void delay_leaf_gradients(const Tensor& result) {
  if (const Record* const r = record_of(result)) r->fn->delay_leaves();
}
void mark_wait(const Tensor& result) {
  if (const Record* const r = record_of(result)) r->fn->mark_wait();
}

GraphTask* GraphTask::current() { return current_task; }
GraphTask* pass_in_progress() { return current_task; }
NodeObserver::NodeObserver(Function function) : before(std::move(function)), outer_(current_observer) {
  current_observer = this;
}
NodeObserver::~NodeObserver() { current_observer = outer_; }
const NodeObserver* NodeObserver::current() { return current_observer; }
NestedScope::NestedScope(GraphTask* outer) : before_(current_task) {
  if (outer) current_task = outer;
}
NestedScope::~NestedScope() { current_task = before_; }

GraphTask::GraphTask(bool retain_graph, bool create_graph)
    : pass_{next_pass.fetch_add(1, std::memory_order_relaxed), std::chrono::steady_clock::now()},
      retain_graph_(retain_graph || create_graph),
      create_graph_(create_graph),
      outer_(current_task) {
  current_task = this;
}

GraphTask::~GraphTask() {
  for (Node* node : claimed_) {
    for (std::uint32_t i = 0; i < node->num_outputs_; ++i) node->outputs_[i].gradient = Tensor();
    node->task_.store(nullptr, std::memory_order_release);
  }
  for (Displaced& d : displaced_) {
    d.node->pending_ = d.pending;
    d.node->reaches_inputs_ = d.reaches_inputs;
    d.node->extended_ = d.extended;
    for (std::uint32_t i = 0; i < d.node->num_outputs_; ++i) {
      d.node->outputs_[i].gradient = std::move(d.gradients[i]);
      d.node->outputs_[i].owns_gradient = false;
    }
    d.node->task_.store(d.task, std::memory_order_release);
  }
  current_task = outer_;
}

void GraphTask::capture(const Edge& edge) {
  selective_ = true;
  captures_at_.emplace(edge.node.get(), captures_.size());
  captures_.push_back({edge.node.get(), edge.output, {}});
}

// Adds the node to this pass. Returns false if the node was added to this pass before. A node has room for
// the state of only one pass. So if a hook runs a nested backward pass over the same nodes on the same
// thread, their state in the outer pass is saved, and restored when the nested pass ends. Throws if the node
// belongs to a pass on another thread.
bool GraphTask::claim(Node* node) {
  GraphTask* holder = nullptr;
  if (!node->task_.compare_exchange_strong(holder, this, std::memory_order_acq_rel)) {
    if (holder == this) return false;
    bool mine = false;
    for (GraphTask* t = outer_; t; t = t->outer_) mine = mine || t == holder;
    check<AutogradError>(
        mine, "[backward] [", node->name_,
        "] is part of a backward pass in progress on another thread; run the passes over one graph "
        "one after another");
    Displaced d{node, holder, node->pending_, node->reaches_inputs_, node->extended_, {}};
    for (std::uint32_t i = 0; i < node->num_outputs_; ++i)
      d.gradients.push_back(std::move(node->outputs_[i].gradient));
    displaced_.push_back(std::move(d));
    node->task_.store(this, std::memory_order_release);
  }
  claimed_.push_back(node);
  node->pending_ = 0;
  node->reaches_inputs_ = node->extended_ = false;
  check<AutogradError>(!node->released_, "[backward] the graph of [", node->name_,
                       "] was already used by a backward pass, which freed its saved tensors; pass "
                       "retain_graph = true to the first pass, or compute the outputs again");
  return true;
}

void GraphTask::explore(std::vector<Node*>& stack) {
  while (!stack.empty()) {
    Node* node = stack.back();
    stack.pop_back();
    for (std::uint32_t i = 0; i < node->num_edges_; ++i) {
      Node* next = node->edges_[i].node.get();
      if (!next) continue;
      if (claim(next)) stack.push_back(next);
      ++next->pending_;
    }
  }
}

// Calls guard.refuse for the first leaf outside the guard's set that would get a gradient.
void GraphTask::check_leaves(const LeafGuard& guard) const {
  for (Node* node : claimed_) {
    if (!node->is_leaf()) continue;
    LeafNode& leaf = static_cast<LeafNode&>(*node);
    if (!leaf.requires_grad || guard.allowed.contains(leaf)) continue;
    const char* op = "backward";
    for (const Node* user : claimed_)
      for (std::uint32_t i = 0; i < user->num_inputs(); ++i)
        if (user->edge(i).node.get() == node) op = user->name();
    guard.refuse(leaf.owner(), op);
  }
}

// Sets the flag reaches_inputs_ of every node whose backward leads to a captured gradient (see capture()).
// Each node needs the flags of the nodes of its inputs. Those nodes were created earlier, so one loop in the
// order of creation suffices. The leaves come before this loop, because their sequence numbers do not follow
// that order.
void GraphTask::mark_paths_to_captures() {
  std::vector<Node*> order;
  for (Node* node : claimed_)
    if (node->is_leaf()) node->reaches_inputs_ = captures_at_.contains(node);
    else order.push_back(node);
  std::sort(order.begin(), order.end(), older);
  for (Node* node : order) {
    bool reaches = captures_at_.contains(node);
    for (std::uint32_t i = 0; i < node->num_edges_ && !reaches; ++i) {
      const Node* next = node->edges_[i].node.get();
      reaches = next && next->reaches_inputs_;
    }
    node->reaches_inputs_ = reaches;
  }
}

// Throws if this pass runs the backward of a node that cannot be recorded.
void GraphTask::check_twice() const {
  for (const Node* node : claimed_) {
    if (node->twice() || node->is_leaf()) continue;
    bool runs = !selective_;
    for (std::uint32_t i = 0; i < node->num_edges_ && !runs; ++i) {
      const Node* next = node->edges_[i].node.get();
      runs = next && next->reaches_inputs_;
    }
    check<AutogradError>(!runs, "[", node->name_,
                         "] gradients of gradients are not available: its backward is not differentiable; "
                         "compute the value with other operations, or call without create_graph");
  }
}

std::vector<std::uint64_t> GraphTask::sequences() const {
  std::vector<std::uint64_t> list;
  for (const Node* node : claimed_)
    if (!node->is_leaf()) list.push_back(node->sequence());
  std::sort(list.begin(), list.end());
  return list;
}

void GraphTask::make_ready(Node* node) {
  ready_.push_back(node);
  std::push_heap(ready_.begin(), ready_.end(), older);
}

void GraphTask::add_to_output(OutputSlot& slot, Tensor&& gradient) {
  if (!slot.gradient.defined()) {
    slot.gradient = std::move(gradient);
    slot.owns_gradient = false;
  } else if (slot.owns_gradient && !create_graph_ &&
             slot.gradient.impl()->refs.load(std::memory_order_relaxed) == 1) {
    slot.gradient.add_(gradient);
  } else {
    slot.gradient = add(slot.gradient, gradient);
    slot.owns_gradient = true;
  }
}

Tensor GraphTask::sum_to_extend(std::uint32_t input, std::initializer_list<const Tensor*> operands) {
  if (create_graph_ || !running_ || DetectAnomaly::active()) return {};
  Node* const to = running_->edge(input).node.get();
  if (!to || !includes(to)) return {};
  const OutputSlot& slot = to->outputs_[running_->edge(input).output];
  Tensor sum = slot.gradient;
  if (sum.defined()) {
    const bool ours = sum.impl()->refs.load(std::memory_order_acquire) == 2 &&
                      sum.storage()->use_count() == 1 &&
                      static_cast<std::size_t>(sum.nbytes()) == sum.storage()->bytes();
    if (!ours) return {};
  } else {
    if (!to->is_leaf() || selective_ || to->pending_ != 1 || !to->hooks_.empty()) return {};
    const LeafNode& leaf = static_cast<const LeafNode&>(*to);
    sum = leaf.grad;
    if (!leaf.requires_grad || !sum.defined() || sum.sizes() != slot.sizes || sum.dtype() != slot.dtype ||
        sum.device() != slot.device)
      return {};
  }
  // A 16-bit sum would be rounded once instead of twice. Modes whose hooks must see the part alone, such as
  // ZeRO, would then train with other bits than modes that have no hooks.
  if (sum.dtype() == DType::f16 || sum.dtype() == DType::bf16) return {};
  if (!sum.is_contiguous()) return {};
  for (const Tensor* operand : operands)
    if (operand->storage() == sum.storage()) return {};
  if (!slot.gradient.defined()) {
    sum.storage()->bump_version();
    to->extended_ = true;
  }
  return sum;
}

bool GraphTask::is_private(const Node& node) const {
  return !selective_ && !create_graph_ && node.num_outputs_ == 1 && node.pending_ == 1 &&
         node.hooks_.empty() && !node.outputs_[0].gradient.defined() && !DetectAnomaly::active();
}

bool GraphTask::masks_gradient(std::uint32_t input) {
  const Edge& edge = running_->edge(input);
  if (!edge.node || !has(listed().masked, *edge.node) || !includes(edge.node.get()) ||
      !is_private(*edge.node))
    return false;
  masked_.push_back(edge.node.get());
  return true;
}

void GraphTask::deliver(Node* from, std::uint32_t input, Tensor&& gradient) {
  const Edge& edge = from->edges_[input];
  Node* to = edge.node.get();
  if (gradient.defined()) {
    OutputSlot& slot = to->outputs_[edge.output];
    if (gradient.sizes() != slot.sizes || gradient.dtype() != slot.dtype || gradient.device() != slot.device)
        [[unlikely]]
      fail<AutogradError>("[", from->name_, "] its backward gave input ", input, " a gradient of ",
                          gradient.dtype(), " ", gradient.sizes(), " on ", gradient.device(), "; expected ",
                          slot.dtype, " ", slot.sizes, " on ", slot.device);
    add_to_output(slot, std::move(gradient));
  }
  if (--to->pending_ == 0) make_ready(to);
}

// Runs the node's backward and delivers the gradients to the nodes of its inputs. `wanted` selects the
// inputs; null selects all. `again` is true if the node has run before, for other inputs.
void GraphTask::call(Node* node, const std::vector<bool>* wanted, bool again) {
  if (observer_ && !node->is_leaf() && !again) [[unlikely]]
    observer_->before(node->sequence());
  if (results_.size() < node->num_edges_) results_.resize(node->num_edges_);
  // The node runs on one of two CUDA streams. A leaf accumulates on the stream of the pass. Any other node
  // uses the stream on which it was recorded, and this stream waits for the earlier work of the pass's
  // stream. The later work of the pass's stream waits for the node.
  const std::uint64_t here = current_context().stream, there = node->is_leaf() ? here : node->context_.stream;
  {
    Context context = node->context_;
    context.stream = there;
    context.grad_enabled = create_graph_;
    context.replica = current_context().replica;
    // The saved tensors and the gradients have the dtypes that autocast chose in forward.
    context.autocast = {};
    ContextGuard guard(context);
    if (there != here) [[unlikely]] {
      tapestry::detail::order_streams(here, there);
      for (std::uint32_t i = 0; i < node->num_outputs_; ++i)
        record_use_on_current_stream(node->outputs_[i].gradient);
    }
    Backward backward(*node, results_.data(), wanted, create_graph_);
    bool any = std::exchange(node->extended_, false) ||
               std::find(implied_.begin(), implied_.end(), node) != implied_.end();
    for (std::uint32_t i = 0; i < node->num_outputs_; ++i) any = any || node->outputs_[i].gradient.defined();
    if (any) {
      check<AutogradError>(!node->released_,
                           "[backward] a nested pass of a hook freed the saved tensors of [", node->name_,
                           "], which this pass needs; pass retain_graph = true to the nested pass");
      std::optional<SpanScope> span;
      if (Timeline::keeps_kernels()) [[unlikely]]
        span.emplace(node->outputs_[0].device, Activity::backward,
                     (std::string(node->name_) + " backward").c_str());
      running_ = node;
      node->run(backward);
      running_ = nullptr;
      span.reset();
      if (!after_node.empty())
        for (const std::function<void()>& callback : std::exchange(after_node, {})) callback();
    }
  }
  if (there != here) [[unlikely]] {
    tapestry::detail::order_streams(there, here);
    for (std::uint32_t i = 0; i < node->num_edges_; ++i) record_use_on_current_stream(results_[i]);
  }
  // Release the node's own references to the gradients first. A gradient that backward passes on unchanged
  // then has only one owner, so its receiver may reuse the memory.
  for (std::uint32_t i = 0; i < node->num_outputs_; ++i) node->outputs_[i].gradient = Tensor();
  for (std::uint32_t i = 0; i < node->num_edges_; ++i) {
    Tensor gradient = std::move(results_[i]);
    if (!node->edges_[i].node || (wanted && !(*wanted)[i])) continue;
    if (DetectAnomaly::active() && gradient.defined()) [[unlikely]] {
      tapestry::detail::refuse_in_capture("DetectAnomaly", "the host reads gradients; capture without it");
      check<AutogradError>(isnan(gradient).sum().item<std::int64_t>() == 0, "[", node->name_,
                           "] its backward gave input ", i, " a gradient with NaN");
    }
    deliver(node, i, std::move(gradient));
  }
}

// Runs the node for those of its inputs that are no weights, and puts off the rest. Returns false, and runs
// nothing, if no input is a weight or the pass must not put off. A weight is a leaf, or the result of
// one operation whose only input is a leaf, such as a cast of autocast. An operation that waits makes none.
bool GraphTask::delay(Node* node) {
  if (create_graph_ || resumes_ || DetectAnomaly::active()) return false;
  const auto is_weight = [](const Node& n) {
    if (n.is_leaf()) return true;
    const Node* const from = n.num_edges_ == 1 && !n.waits_ ? n.edges_[0].node.get() : nullptr;
    return from && from->is_leaf();
  };
  Postponed rest{NodeRef(node), {}, {}};
  std::vector<bool> now;
  bool any_weight = false, any_other = false;
  for (std::uint32_t i = 0; i < node->num_edges_; ++i) {
    const Node* const next = node->edges_[i].node.get();
    rest.wanted.push_back(next && is_weight(*next));
    now.push_back(next && !rest.wanted.back());
    any_weight = any_weight || rest.wanted.back();
    any_other = any_other || now.back();
  }
  if (!any_weight) return false;
  for (std::uint32_t i = 0; i < node->num_outputs_; ++i) rest.gradients.push_back(node->outputs_[i].gradient);
  if (any_other) call(node, &now);
  rest.has_run = any_other;
  for (std::uint32_t i = 0; i < node->num_outputs_; ++i) node->outputs_[i].gradient = Tensor();
  delayed_.push_back(std::move(rest));
  return true;
}

// Computes the oldest delayed gradients, up to the leaves and their hooks.
void GraphTask::run_delayed(std::size_t count) {
  for (; count > 0; --count) {
    Postponed& p = delayed_.front();  // it stays in front while hooks may ask for position()
    const NodeRef node = p.node;
    const std::vector<bool> wanted = p.wanted;
    const bool again = p.has_run;
    for (std::uint32_t i = 0; i < node->num_outputs_; ++i)
      node->outputs_[i].gradient = std::move(p.gradients[i]);
    call(node.get(), &wanted, again);
    if (!retain_graph_) node->released_ = node->release_saved();
    const auto gets_gradient = [&](const Node* n) {
      for (std::uint32_t i = 0; i < node->num_edges_; ++i)
        if (node->edges_[i].node.get() == n) return wanted[i] || n->is_leaf();
      return n->is_leaf();
    };
    while (!ready_.empty() && gets_gradient(ready_.front())) run_next();
    delayed_.pop_front();
    if (left_ > 0) --left_;
  }
}

void GraphTask::run_next() {
  std::pop_heap(ready_.begin(), ready_.end(), older);
  Node* const node = ready_.back();
  ready_.pop_back();
  execute(node);
}

void GraphTask::execute(Node* node) {
  if (!node->is_leaf() && !resumes_) position_ = std::min(position_, node->sequence());
  if (!node->hooks_.empty()) node->run_hooks();
  if (!selective_) {
    if (node->delays_ && delay(node)) return;
    if (node->waits_) {
      run_delayed(left_ + (delayed_.size() - left_ + 1) / 2);
      left_ = delayed_.size();
    }
    call(node, nullptr);
    if (!retain_graph_) node->released_ = node->release_saved();
    return;
  }

  auto [first, last] = captures_at_.equal_range(node);
  for (auto it = first; it != last; ++it) {
    Capture& c = captures_[it->second];
    c.gradient = node->outputs_[c.output].gradient;
  }
  std::vector<bool> wanted(node->num_edges_, false), rest(node->num_edges_, false);
  bool any_wanted = false, any_rest = false;
  for (std::uint32_t i = 0; i < node->num_edges_; ++i) {
    const Node* next = node->edges_[i].node.get();
    if (!next) continue;
    wanted[i] = next->reaches_inputs_;
    rest[i] = !wanted[i];
    any_wanted = any_wanted || wanted[i];
    any_rest = any_rest || rest[i];
  }
  const bool postpone = postponed_ && any_rest;
  if (postpone) {
    Postponed p{NodeRef(node), {}, rest};
    for (std::uint32_t i = 0; i < node->num_outputs_; ++i) p.gradients.push_back(node->outputs_[i].gradient);
    postponed_->nodes.push_back(std::move(p));
  }
  // The backward of a node runs only if one of its input gradients is needed. Otherwise the node also keeps
  // its saved tensors, so that another pass may continue from it.
  if (!any_wanted) return;
  call(node, &wanted);
  if (!retain_graph_ && !postpone) node->released_ = node->release_saved();
}

void GraphTask::run(std::vector<Seed> seeds, std::vector<Postponed> resumed) {
  std::vector<Node*> stack;
  resumes_ = !resumed.empty();
  for (const Seed& s : seeds) {
    roots_.push_back(s.node);
    if (claim(s.node.get())) stack.push_back(s.node.get());
    ++s.node->pending_;
  }
  for (const Postponed& p : resumed) {
    roots_.push_back(p.node);
    claim(p.node.get());
    for (std::uint32_t i = 0; i < p.node->num_edges_; ++i) {
      if (!p.wanted[i]) continue;
      Node* next = p.node->edges_[i].node.get();
      if (claim(next)) stack.push_back(next);
      ++next->pending_;
    }
  }
  explore(stack);
  if (const LeafGuard* const guard = LeafGuard::current(); guard && (!selective_ || postponed_))
    check_leaves(*guard);
  if (selective_) mark_paths_to_captures();
  if (create_graph_) check_twice();

  for (Seed& s : seeds) {
    if (selective_ && !s.node->reaches_inputs_) {
      if (postponed_) postponed_->seeds.push_back(std::move(s));
      continue;
    }
    OutputSlot& slot = s.node->outputs_[s.output];
    if (s.gradient.defined()) add_to_output(slot, std::move(s.gradient));
    else if (has(listed().one, *s.node) && is_private(*s.node)) implied_.push_back(s.node.get());
    else add_to_output(slot, ones(slot.sizes, {slot.dtype, slot.device}));
    if (--s.node->pending_ == 0) make_ready(s.node.get());
  }
  seeds.clear();

  std::sort(resumed.begin(), resumed.end(),
            [](const Postponed& a, const Postponed& b) { return a.node->sequence() > b.node->sequence(); });
  for (Postponed& p : resumed) {
    for (std::uint32_t i = 0; i < p.node->num_outputs_; ++i)
      p.node->outputs_[i].gradient = std::move(p.gradients[i]);
    call(p.node.get(), &p.wanted);
    p.node->released_ = p.node->release_saved();
  }

  while (!ready_.empty() || !delayed_.empty())
    if (ready_.empty()) run_delayed(delayed_.size());
    else run_next();
  // The loop uses an index, because a callback may append another callback to the list.
  for (std::size_t i = 0; i < callbacks.size(); ++i) {
    const std::function<void()> callback = std::move(callbacks[i]);
    callback();
  }
}

}  // namespace tapestry::autograd
