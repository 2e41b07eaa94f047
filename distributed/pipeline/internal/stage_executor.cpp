#include "tapestry/distributed/pipeline/internal/stage_executor.h"

#include <algorithm>
#include <utility>

#include "tapestry/autograd/checkpoint.h"
#include "tapestry/autograd/ops/creation.h"
#include "tapestry/autograd/ops/elementwise.h"
#include "tapestry/core/error.h"
#include "tapestry/core/timeline.h"
#include "tapestry/distributed/placement/check.h"
#include "tapestry/nn/internal/stored.h"

namespace tapestry::distributed {

Timestamp::Timestamp(Device device) : device_(device) {
  if (device.is_cuda()) event_.record(current_stream(device));
  else time_ = std::chrono::steady_clock::now();
}

double Timestamp::seconds_since(const Timestamp& begin) const {
  if (!device_.is_cuda()) return std::chrono::duration<double>(time_ - begin.time_).count();
  event_.synchronize();
  return event_.milliseconds_since(begin.event_) / 1000;
}

StageExecutor::StageExecutor(const Stage& stage, const PipelineOptions& options, int micro_batches,
                             bool records, const char* row, const CopyStreams* copy_streams,
                             const std::vector<Axis>& axes)
    : stage_(stage),
      records_(records),
      checkpoints_(records && options.checkpoint),
      postpones_weights_(options.schedule == Schedule::zero_bubble),
      row_(row ? row : stage.device().str()),
      copy_streams_(copy_streams),
      axes_(axes),
      graphs_(static_cast<std::size_t>(micro_batches)) {}

template <class F>
void StageExecutor::timed(Part part, int micro_batch, Device clock, const F& f, std::int64_t bytes) {
  static constexpr const char* kNames[] = {"forward", "backward", "weights", "receive"};
  static constexpr Activity kActivities[] = {Activity::forward, Activity::backward, Activity::backward,
                                             Activity::communication};
  const auto i = static_cast<std::size_t>(part);
  SpanScope span(clock, kActivities[i], kNames[i], micro_batch, row_.c_str());
  span.set_subject({.bytes = bytes, .axis = bytes > 0 ? "pipeline" : ""});
  Timestamp begin(clock);
  f();
  intervals_.push_back({part, std::move(begin), Timestamp(clock)});
}

std::vector<Tensor> StageExecutor::receive(std::vector<Tensor> here, int micro_batch,
                                           const ReadyEvent* ready) {
  const Device device = stage_.device();
  for (Tensor& t : here) {
    if (!t.defined() || t.device() == device) continue;
    const auto bytes = static_cast<std::int64_t>(t.nbytes());
    bytes_received_ += bytes;
    if (ready && copy_streams_ && device.is_cuda()) {
      const Stream consumer = current_stream(device);
      ready->copy_stream.wait(ready->event);  // the measured time must begin when the tensor is ready
      const StreamGuard guard(ready->copy_stream);
      timed(
          Part::receive, micro_batch, t.device(),
          [&] { t = copy_between_stages(t, ready, consumer, *copy_streams_); }, bytes);
    } else {
      const NoGradGuard no_grad;
      timed(
          Part::receive, micro_batch, device, [&] { t = t.to(device); }, bytes);
    }
  }
  return here;
}

void StageExecutor::record_ready_event(Message& message) const {
  if (copy_streams_) message.ready = record_ready(stage_.device(), *copy_streams_);
}

Message StageExecutor::forward(int micro_batch, const Message& inputs, MicroBatchLoss* loss) {
  std::vector<Tensor> here = receive(inputs.tensors, micro_batch, inputs.ready.get()), targets;
  if (loss) targets = receive(loss->targets, micro_batch);
  Graph& graph = graphs_[static_cast<std::size_t>(micro_batch)];
  graph.inputs.resize(here.size());
  for (std::size_t k = 0; k < here.size() && records_; ++k) {
    if (!here[k].defined()) continue;
    here[k] = here[k].detach();
    if (inputs.requires_grad[k]) graph.inputs[k] = here[k].set_requires_grad();
    for (std::size_t a = 0; k < inputs.placements.size() && a < axes_.size(); ++a)
      if (const auto& placement = inputs.placements[k][a]) set_placement(here[k], axes_[a], *placement);
  }
  timed(Part::forward, micro_batch, stage_.device(), [&] {
    const auto run = [this](const std::vector<Tensor>& x) { return stage_(x); };
    graph.outputs = checkpoints_ ? tapestry::checkpoint(run, here) : run(here);
    const auto defined = [](const Tensor& t) { return t.defined(); };
    check(std::any_of(graph.outputs.begin(), graph.outputs.end(), defined), "[Pipeline] ", stage_.name(),
          " returned no tensor; return one or more for the next stage or the loss");
    if (loss) compute_loss(graph, *loss, targets);
  });
  peak_ = std::max(peak_, ++alive_);
  Message message;
  for (const Tensor& t : graph.outputs) {
    message.tensors.push_back(t.defined() ? t.detach() : t);
    message.requires_grad.push_back(t.defined() && t.requires_grad());
    if (axes_.empty() || !records_ || !checks_placement()) continue;
    auto& placements = message.placements.emplace_back(axes_.size());
    for (std::size_t a = 0; a < axes_.size() && t.defined(); ++a) placements[a] = placement_of(t, axes_[a]);
  }
  record_ready_event(message);
  if (!records_) {
    graph = {};
    --alive_;
  }
  return message;
}

void StageExecutor::compute_loss(Graph& graph, MicroBatchLoss& part, const std::vector<Tensor>& targets) {
  const Tensor loss = part.fn(graph.outputs, targets);
  check(loss.defined(), "[Pipeline] the loss is undefined; return one number, the mean over the micro-batch");
  check(loss.numel() == 1 && is_floating(loss.dtype()), "[Pipeline] the loss is ", loss.dtype(), " ",
        loss.sizes(), "; return one floating-point number, the mean over the micro-batch");
  check<DeviceError>(loss.device() == stage_.device(), "[Pipeline] the loss is on ", loss.device(),
                     "; compute it on ", stage_.device(), ", the last stage's device");
  check<AutogradError>(
      loss.requires_grad(),
      "[Pipeline] the loss does not require gradients, because nothing that it depends on does; "
      "train a parameter, or evaluate with pipeline(inputs)");
  const NoGradGuard no_grad;
  part.value = loss.detach().reshape({}) * part.weight;
  graph.outputs = {loss};
  graph.seeds = {full(loss.sizes(), part.weight, {loss.dtype(), loss.device()})};
}

namespace {

// The outputs that have gradients, and their gradients.
std::pair<std::vector<Tensor>, std::vector<Tensor>> roots_of(std::vector<Tensor> outputs,
                                                             std::vector<Tensor> gradients) {
  std::pair<std::vector<Tensor>, std::vector<Tensor>> found;
  for (std::size_t k = 0; k < outputs.size(); ++k) {
    if (!gradients[k].defined() || !outputs[k].requires_grad()) continue;
    found.first.push_back(std::move(outputs[k]));
    found.second.push_back(std::move(gradients[k]));
  }
  return found;
}

}  // namespace

// Runs in the stage's context, because the context selects the replica of a tied parameter.
void StageExecutor::allow_parameters() {
  if (std::exchange(parameters_allowed_, true)) return;
  for (const nn::Module& module : stage_.modules())
    for (const nn::Parameter& parameter : module.parameters())
      for (const Tensor& leaf : nn::leaves_of(parameter, current_context().replica)) leaves_.add(leaf);
}

// Throws for a leaf that the stage's modules do not have. The name of the leaf is known if a module of the
// stage belongs to the same model.
void StageExecutor::refuse(const Tensor& leaf, const char* op) const {
  std::string name;
  for (const nn::Module& module : stage_.modules())
    for (const auto& [path, parameter] : module.root().named_parameters())
      for (int r = 0; r < parameter.replicas() && name.empty(); ++r)
        if (parameter.replica(r).is_same(leaf)) name = "'" + path + "'";
  if (name.empty())
    name = leaf.defined()
               ? concat({"a parameter of ", leaf.dtype(), " ", leaf.sizes(), " on ", leaf.device()})
               : std::string("a parameter");
  fail("[Pipeline] backward of [", op, "] would give a gradient to ", name,
       ", which belongs to no module of this stage, so it would never be stepped, zeroed or clipped; add its "
       "module to the stage's list, or detach() it");
}

Message StageExecutor::backward(int micro_batch, Message gradients) {
  std::vector<Tensor> here = receive(std::move(gradients.tensors), micro_batch, gradients.ready.get());
  Graph& graph = graphs_[static_cast<std::size_t>(micro_batch)];
  if (graph.seeds.empty()) graph.seeds = std::move(here);
  Message message;
  allow_parameters();
  const autograd::LeafGuard guard(leaves_, [this](const Tensor& leaf, const char* op) { refuse(leaf, op); });
  timed(Part::backward, micro_batch, stage_.device(), [&] {
    std::vector<Tensor> leaves;
    for (const Tensor& t : graph.inputs)
      if (t.defined()) leaves.push_back(t);
    // If no input requires a gradient, the whole backward pass belongs to weights().
    if (postpones_weights_ && leaves.empty()) return message.tensors.resize(graph.inputs.size());
    // The pass owns the outputs and their gradients, and frees what it does not need.
    auto [roots, seeds] = roots_of(std::exchange(graph.outputs, {}), std::exchange(graph.seeds, {}));
    std::vector<Tensor> of_leaves(leaves.size());
    if (postpones_weights_ && !roots.empty()) {
      of_leaves =
          autograd::backward_inputs(std::move(roots), leaves, std::move(seeds), graph.postponed.emplace());
    } else if (!roots.empty()) {
      autograd::backward(std::move(roots), std::move(seeds), false);
      for (std::size_t i = 0; i < leaves.size(); ++i) of_leaves[i] = leaves[i].grad();
    }
    auto next = of_leaves.begin();
    for (const Tensor& t : graph.inputs) message.tensors.push_back(t.defined() ? *next++ : t);
    graph.inputs = {};
  });
  record_ready_event(message);
  alive_ -= !postpones_weights_;
  return message;
}

void StageExecutor::weights(int micro_batch) {
  Graph& graph = graphs_[static_cast<std::size_t>(micro_batch)];
  allow_parameters();
  const autograd::LeafGuard guard(leaves_, [this](const Tensor& leaf, const char* op) { refuse(leaf, op); });
  timed(Part::weights, micro_batch, stage_.device(), [&] {
    if (graph.postponed) {
      graph.postponed->accumulate();
    } else if (auto [roots, seeds] =
                   roots_of(std::exchange(graph.outputs, {}), std::exchange(graph.seeds, {}));
               !roots.empty()) {
      autograd::backward(std::move(roots), std::move(seeds), false);
    }
    graph = {};
  });
  --alive_;
}

StageReport StageExecutor::report() const {
  StageReport report;
  report.name = stage_.name();
  report.device = stage_.device();
  report.bytes_received = bytes_received_;
  report.peak_micro_batches = peak_;
  for (const Interval& lap : intervals_) {
    const double seconds = lap.end.seconds_since(lap.begin);
    switch (lap.part) {
      case Part::forward:
        report.forward_s += seconds;
        break;
      case Part::weights:
        report.weights_s += seconds;
        [[fallthrough]];
      case Part::backward:
        report.backward_s += seconds;
        break;
      case Part::receive:
        report.receive_s += seconds;
        break;
    }
  }
  return report;
}

}  // namespace tapestry::distributed
