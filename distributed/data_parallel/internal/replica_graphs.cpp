#include "tapestry/distributed/data_parallel/internal/replica_graphs.h"

#include "tapestry/autograd/engine.h"
#include "tapestry/autograd/ops/creation.h"
#include "tapestry/autograd/ops/elementwise.h"
#include "tapestry/autograd/ops/view.h"
#include "tapestry/core/error.h"
#include "tapestry/core/timeline.h"

namespace tapestry::distributed {
namespace {

// Runs `backward` with the reducer switched on. If the pass computed no gradients on this replica, the
// replica still takes part in the collectives, because the others wait for it.
template <class F>
void run_pass(Reducer* reducer, const F& backward) {
  if (!reducer) return backward();
  struct SynchronizeScope {
    Reducer& reducer;
    ~SynchronizeScope() { *reducer.synchronize = false; }
  } scope{*reducer};
  *reducer->synchronize = true;
  const std::uint64_t passes = reducer->passes();
  backward();
  if (reducer->passes() == passes) reducer->pass_without_gradients();
}

// The bytes that copies between devices move: those of all parts but the first device's.
std::int64_t bytes_beside_first(const std::vector<std::vector<Tensor>>& parts) {
  std::int64_t bytes = 0;
  for (std::size_t r = 1; r < parts.size(); ++r)
    for (const Tensor& t : parts[r])
      if (t.defined()) bytes += static_cast<std::int64_t>(t.nbytes());
  return bytes;
}

}  // namespace

void check_loss(const char* op, const std::vector<Tensor>& outputs) {
  check(!outputs.empty() && outputs[0].defined(), "[", op,
        "] the loss is undefined; return one number, the mean over the part");
  check(outputs[0].numel() == 1 && is_floating(outputs[0].dtype()), "[", op, "] the loss is ",
        outputs[0].dtype(), " ", outputs[0].sizes(),
        "; return one floating-point number, the mean over the part");
}

void ReplicaGraphs::scatter(const TensorList& batch) {
  {
    const NoGradGuard no_grad;
    SpanScope span(replicas_->devices[0], Activity::communication, "scatter");
    inputs_ = scatter_tensors(batch, replicas_->devices);
    span.set_subject({.bytes = bytes_beside_first(inputs_)});
    parts_ = inputs_.size();
    while (replicas_->are_sharded() && inputs_.size() < replicas_->size()) {
      std::vector<Tensor> first = inputs_[0];
      for (Tensor& t : first)
        if (t.defined()) t = t.to(replicas_->devices[inputs_.size()]);
      inputs_.push_back(std::move(first));
    }
  }
  for (std::size_t k = 0; k < batch.tensors.size(); ++k) {
    const Tensor& t = batch.tensors[k];
    if (!t.defined()) continue;
    const bool whole = batch.whole[k] || t.dim() == 0;
    if (!whole && sizes_.empty())
      for (std::size_t r = 0; r < parts(); ++r) sizes_.push_back(inputs_[r][k].size(0));
    if (!autograd::recording(t)) continue;
    node_inputs_.push_back({k, whole, t.device()});
    for (auto& part : inputs_) {
      part[k] = part[k].detach();
      part[k].set_requires_grad();
    }
  }
}

void ReplicaGraphs::apply(const Compute& compute) {
  replicas_->seed_generators();
  outputs_.resize(inputs_.size());
  const auto detach = [&] {
    if (!replicas_->are_persistent()) masters_ = replicas_->detach_replicas();
  };
  try {
    replicas_->run(inputs_.size(), replicas_->are_sharded(), [&](int i) {
      const auto r = static_cast<std::size_t>(i);
      if (i > 0) current_context().generator = replicas_->generator(i);
      const SpanScope span(replicas_->devices[r], Activity::forward, "forward");
      outputs_[r] = compute(i, inputs_[r]);
      if (loss_) check_loss(replicas_->op, outputs_[r]);
    });
  } catch (...) {
    detach();
    throw;
  }
  detach();
  std::vector<bool> needed(inputs_[0].size());
  for (const Input& input : node_inputs_) needed[input.index] = true;
  for (auto& part : inputs_)
    for (std::size_t k = 0; k < part.size(); ++k)
      if (!needed[k]) part[k] = {};
}

std::vector<Tensor> ReplicaGraphs::gathered_values() const {
  const NoGradGuard no_grad;
  const Device device = replicas_->devices[0];
  std::vector<std::vector<Tensor>> values(parts());
  Tensor loss;
  for (std::size_t r = 0; r < parts(); ++r) {
    for (const Tensor& t : outputs_[r]) values[r].push_back(t.defined() ? t.detach() : t);
    if (!loss_) continue;
    const Tensor share = values[r][0].to(device).reshape({}) * weight(r);
    loss = loss.defined() ? loss + share : share;
    values[r].erase(values[r].begin());
  }
  std::vector<Tensor> gathered = gather_tensors(values, device);
  if (loss_) gathered.insert(gathered.begin(), loss);
  return gathered;
}

std::vector<Tensor> ReplicaGraphs::gather(const TensorList& batch) {
  std::vector<Tensor> gathered = [&] {
    SpanScope span(replicas_->devices[0], Activity::communication, "gather");
    span.set_subject({.bytes = bytes_beside_first(outputs_)});
    return gathered_values();
  }();
  std::vector<const Tensor*> from, to;
  for (std::size_t i = 0; i < gathered.size(); ++i)
    for (std::size_t r = 0; r < parts(); ++r)
      if (outputs_[r][i].defined() && outputs_[r][i].requires_grad()) {
        node_outputs_.push_back(i);
        to.push_back(&gathered[i]);
        break;
      }
  if (to.empty()) return gathered;
  for (const Input& input : node_inputs_) from.push_back(&batch.tensors[input.index]);
  autograd::record("data_parallel", to, from,
                   [self = shared_from_this()](autograd::Backward& b) { self->backward(b); });
  return gathered;
}

// The part of a gathered output's gradient that belongs to a replica.
Tensor ReplicaGraphs::seed(const Tensor& gradient, std::size_t output, std::size_t replica) const {
  const Tensor& own = outputs_[replica][output];
  if (replica >= parts()) return zeros(own.sizes(), {own.dtype(), own.device()});
  if (loss_ && output == 0) return (gradient.to(own.device()) * weight(replica)).reshape(own.sizes());
  if (own.dim() == 0) return gradient.select(0, static_cast<std::int64_t>(replica)).to(own.device());
  std::int64_t begin = 0;
  for (std::size_t r = 0; r < replica; ++r) begin += outputs_[r][output].size(0);
  return gradient.narrow(0, begin, own.size(0)).to(own.device());
}

// Runs on the replica's worker. Returns the gradients of the inputs.
std::vector<Tensor> ReplicaGraphs::backward_of(std::size_t replica, const autograd::Backward& b,
                                               autograd::NestedPass mode, Reducer* reducer) const {
  std::vector<Tensor> roots, seeds, inputs;
  if (replica < inputs_.size()) {
    for (std::size_t i = 0; i < node_outputs_.size(); ++i) {
      const Tensor& gradient = b.grad(static_cast<std::uint32_t>(i));
      const Tensor& own = outputs_[replica][node_outputs_[i]];
      if (!gradient.defined() || !own.requires_grad()) continue;
      roots.push_back(own);
      seeds.push_back(seed(gradient, node_outputs_[i], replica));
    }
    for (const Input& input : node_inputs_) inputs.push_back(inputs_[replica][input.index]);
  }
  if (!mode.accumulates) {
    if (roots.empty() || inputs.empty()) return std::vector<Tensor>(inputs.size());
    return autograd::grad(roots, inputs, seeds, mode.retain_graph, true);
  }
  run_pass(reducer, [&] {
    if (!roots.empty()) autograd::backward(roots, std::move(seeds), mode.retain_graph);
  });
  std::vector<Tensor> gradients;
  for (const Tensor& t : inputs) {
    gradients.push_back(t.grad());
    t.set_grad({});
  }
  return gradients;
}

// Adds the gradients of the other replicas to those of the first.
void ReplicaGraphs::reduce_on_master() const {
  on_replicas(replicas_->first(1), [&](int) {
    SpanScope span(replicas_->devices[0], Activity::communication, "add gradients");
    std::int64_t bytes = 0;
    for (std::size_t r = 1; r < parts(); ++r)
      for (std::size_t p = 0; p < masters_[r].size(); ++p) {
        const Tensor gradient = masters_[r][p].grad();
        const Tensor& first = masters_[0][p];
        if (!gradient.defined()) continue;
        masters_[r][p].set_grad({});
        bytes += static_cast<std::int64_t>(gradient.nbytes());
        if (first.grad().defined()) first.grad().add_(gradient.to(first.device()));
        else first.set_grad(gradient.to(first.device()));
      }
    span.set_subject({.bytes = bytes});
  });
}

Tensor ReplicaGraphs::join_input(std::size_t input, const std::vector<std::vector<Tensor>>& gradients) const {
  const auto& [index, whole, device] = node_inputs_[input];
  std::vector<Tensor> of_parts, chunks;
  for (std::size_t r = 0; r < parts(); ++r) {
    of_parts.push_back(gradients[r][input]);
    chunks.push_back(inputs_[r][index]);
  }
  return join_gradients(of_parts, chunks, whole, device);
}

void ReplicaGraphs::backward(autograd::Backward& b) {
  const autograd::NestedPass mode = autograd::nested_pass();
  const std::vector<std::unique_ptr<Reducer>> none;
  const auto& reducers = mode.accumulates && replicas_->are_persistent() ? replicas_->reducers() : none;
  const bool reduces = !reducers.empty();
  if (reduces) replicas_->leave_gradients_to_first();
  struct AttachScope {
    Replicas& replicas;
    const bool active;
    ~AttachScope() {
      if (active) replicas.drop_replicas();
    }
  } scope{*replicas_, !replicas_->are_persistent()};
  if (scope.active) replicas_->attach_replicas(masters_);
  std::vector<std::vector<Tensor>> gradients(replicas_->size());
  const bool collective = reduces || replicas_->are_sharded();
  // The caller's graph may use the parameters of the first replica too, outside of the call.
  autograd::GraphTask* const outer = autograd::pass_in_progress();
  const Replicas::PassScope pass(*replicas_);
  replicas_->run(collective ? replicas_->size() : parts(), collective, [&](int i) {
    const auto r = static_cast<std::size_t>(i);
    const SpanScope span(replicas_->devices[r], Activity::backward, "backward");
    const autograd::NestedScope nested(i == 0 ? outer : nullptr);
    gradients[r] = backward_of(r, b, mode, reduces ? reducers[r].get() : nullptr);
  });
  if (reduces) {
    replicas_->record_gradients();
    replicas_->compare_once();
  }
  if (mode.accumulates && !replicas_->are_persistent()) reduce_on_master();
  for (std::size_t k = 0; k < node_inputs_.size(); ++k)
    b.set(static_cast<std::uint32_t>(k), join_input(k, gradients));
}

}  // namespace tapestry::distributed
