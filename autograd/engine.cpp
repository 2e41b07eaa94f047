#include "tapestry/autograd/engine.h"

#include "tapestry/autograd/internal/graph_task.h"
#include "tapestry/autograd/internal/nested.h"
#include "tapestry/autograd/internal/stale_view.h"
#include "tapestry/core/tls_model.h"

namespace tapestry::autograd {
namespace {

TAPESTRY_HOT_TLS thread_local constinit SavedTensorHooks* current_hooks = nullptr;
TAPESTRY_HOT_TLS thread_local constinit bool anomaly = false;

// A pass with create_graph runs in grad mode, any other in no-grad mode.
struct GradMode : tapestry::detail::GradModeGuard {
  explicit GradMode(bool create_graph)
      : GradModeGuard(create_graph, current_context().inference && !create_graph) {}
};

std::vector<Seed> make_seeds(const char* op, const std::vector<Tensor>& outputs,
                             std::vector<Tensor> grad_outputs) {
  check<AutogradError>(!outputs.empty(), "[", op, "] got no outputs; pass the tensors to differentiate");
  check<AutogradError>(grad_outputs.empty() || grad_outputs.size() == outputs.size(), "[", op, "] got ",
                       outputs.size(), " outputs but ", grad_outputs.size(),
                       " gradients; pass one gradient per output, or none");
  std::vector<Seed> seeds;
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    const Tensor& out = outputs[i];
    tapestry::detail::check_defined(op, out, "an output");
    check<AutogradError>(
        needs_grad(out), "[", op, "] output ", i, " of shape ", out.sizes(),
        " was not recorded: nothing it was computed from requires gradients, or it was computed under "
        "NoGradGuard or InferenceMode; call set_requires_grad() on the inputs before computing it");
    check_current_view(op, "output", i, out);
    Tensor gradient = grad_outputs.empty() ? Tensor() : std::move(grad_outputs[i]);
    if (gradient.defined())
      check<AutogradError>(gradient.sizes() == out.sizes() && gradient.dtype() == out.dtype() &&
                               gradient.device() == out.device(),
                           "[", op, "] the gradient given for output ", i, " is ", gradient.dtype(), " ",
                           gradient.sizes(), " on ", gradient.device(), "; expected ", out.dtype(), " ",
                           out.sizes(), " on ", out.device());
    else
      check<AutogradError>(
          out.numel() == 1, "[", op, "] output ", i, " has shape ", out.sizes(),
          "; a gradient is implied only for one element: reduce it with sum() or mean(), or pass "
          "the gradient");
    const Record* r = record_of(out);
    seeds.push_back({r->fn, r->output, std::move(gradient)});
  }
  return seeds;
}

void capture_inputs(const char* op, GraphTask& task, const std::vector<Tensor>& inputs) {
  check<AutogradError>(!inputs.empty(), "[", op,
                       "] got no inputs; pass the tensors to differentiate with respect to");
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    tapestry::detail::check_defined(op, inputs[i], "an input");
    check<AutogradError>(needs_grad(inputs[i]), "[", op, "] input ", i, " of shape ", inputs[i].sizes(),
                         " does not require gradients; call set_requires_grad() before using it");
    const Record* r = record_of(inputs[i]);
    task.capture({r->fn, r->output});
  }
}

}  // namespace

void backward(const std::vector<Tensor>& outputs, const BackwardOptions& o) {
  const GradMode grad_mode(o.create_graph);
  std::vector<Seed> seeds = make_seeds("backward", outputs, o.grad_outputs);
  GraphTask task(o.retain_graph, o.create_graph);
  task.run(std::move(seeds));
}
void backward(std::vector<Tensor> outputs, std::vector<Tensor> grad_outputs, bool retain_graph) {
  const NoGradGuard no_grad;
  std::vector<Seed> seeds = make_seeds("backward", outputs, std::move(grad_outputs));
  outputs.clear();
  GraphTask task(retain_graph);
  task.run(std::move(seeds));
}

std::vector<Tensor> grad(const std::vector<Tensor>& outputs, const std::vector<Tensor>& inputs,
                         const std::vector<Tensor>& grad_outputs, bool retain_graph, bool allow_unused) {
  return grad(outputs, inputs,
              {.grad_outputs = grad_outputs, .retain_graph = retain_graph, .allow_unused = allow_unused});
}
std::vector<Tensor> grad(const std::vector<Tensor>& outputs, const std::vector<Tensor>& inputs,
                         const GradOptions& o) {
  const GradMode grad_mode(o.create_graph);
  std::vector<Seed> seeds = make_seeds("grad", outputs, o.grad_outputs);
  GraphTask task(o.retain_graph, o.create_graph);
  capture_inputs("grad", task, inputs);
  task.run(std::move(seeds));
  std::vector<Tensor> result;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    check<AutogradError>(task.captured(i).defined() || o.allow_unused,
                         "[grad] the outputs do not depend on input ", i, " of shape ", inputs[i].sizes(),
                         "; pass allow_unused = true to get an undefined tensor");
    result.push_back(task.captured(i));
  }
  return result;
}

std::vector<Tensor> backward_inputs(std::vector<Tensor> outputs, const std::vector<Tensor>& inputs,
                                    std::vector<Tensor> grad_outputs, WeightGradients& weights) {
  NoGradGuard no_grad;
  std::vector<Seed> seeds = make_seeds("backward_inputs", outputs, std::move(grad_outputs));
  outputs.clear();
  auto postponed = std::make_unique<WeightGradients::Impl>();
  GraphTask task(false);
  capture_inputs("backward_inputs", task, inputs);
  task.postpone_into(postponed.get());
  task.run(std::move(seeds));
  weights.impl_ = std::move(postponed);
  std::vector<Tensor> result;
  for (std::size_t i = 0; i < inputs.size(); ++i) result.push_back(task.captured(i));
  return result;
}

WeightGradients::WeightGradients() = default;
WeightGradients::~WeightGradients() = default;
WeightGradients::WeightGradients(WeightGradients&&) noexcept = default;
WeightGradients& WeightGradients::operator=(WeightGradients&&) noexcept = default;

void WeightGradients::accumulate() {
  check<AutogradError>(
      impl_ != nullptr,
      "[accumulate] there are no weight gradients left to compute; call backward_inputs() first, and "
      "accumulate() once");
  NoGradGuard no_grad;
  const std::unique_ptr<Impl> impl = std::move(impl_);
  GraphTask task(false);
  task.run(std::move(impl->seeds), std::move(impl->nodes));
}

void on_backward_end(std::function<void()> callback) {
  GraphTask* task = GraphTask::current();
  check<AutogradError>(task != nullptr,
                       "[on_backward_end] no backward pass is in progress on this thread; call it "
                       "from a hook");
  task->callbacks.push_back(std::move(callback));
}

BackwardPass current_backward() {
  const GraphTask* task = GraphTask::current();
  check<AutogradError>(
      task != nullptr,
      "[current_backward] no backward pass is in progress on this thread; call it from a hook");
  return task->pass();
}

bool backward_reaches(const Tensor& leaf) {
  const GraphTask* task = GraphTask::current();
  check<AutogradError>(
      task != nullptr,
      "[backward_reaches] no backward pass is in progress on this thread; call it from a hook");
  tapestry::detail::check_defined("backward_reaches", leaf, "the leaf");
  const Record* r = record_of(leaf);
  return r && task->includes(r->fn.get());
}

PassPosition pass_position() {
  const GraphTask* task = GraphTask::current();
  return task ? PassPosition{task->pass().id, task->accumulates(), task->position(), task->reached()}
              : PassPosition{};
}

std::vector<std::uint64_t> pass_sequences() {
  const GraphTask* task = GraphTask::current();
  return task ? task->sequences() : std::vector<std::uint64_t>();
}

void deliver_to_leaf(const Tensor& leaf, Tensor gradient) {
  const NoGradGuard no_grad;
  std::vector<Seed> seeds;
  seeds.push_back({record_of(leaf)->fn, record_of(leaf)->output, std::move(gradient)});
  GraphTask task(false);
  task.run(std::move(seeds));
}

NestedPass nested_pass() {
  const GraphTask* task = GraphTask::current();
  check<AutogradError>(
      task != nullptr,
      "[nested_pass] no backward pass is in progress on this thread; call it from a node's backward");
  check<AutogradError>(!task->postpones(),
                       "[nested_pass] backward_inputs() cannot postpone the weight gradients of a graph "
                       "that a node runs by itself; use backward()");
  return {task->retains_graph(), task->accumulates()};
}

SavedTensorHooks::SavedTensorHooks(Pack pack_fn, Unpack unpack_fn)
    : pack(std::move(pack_fn)), unpack(std::move(unpack_fn)), outer_(current_hooks) {
  check(pack && unpack, "[SavedTensorHooks] a hook is empty; pass two that can be called");
  current_hooks = this;
}
SavedTensorHooks::~SavedTensorHooks() { current_hooks = outer_; }
SavedTensorHooks* SavedTensorHooks::current() { return current_hooks; }

DetectAnomaly::DetectAnomaly() : outer_(anomaly) { anomaly = true; }
DetectAnomaly::~DetectAnomaly() { anomaly = outer_; }
bool DetectAnomaly::active() { return anomaly; }

}  // namespace tapestry::autograd
