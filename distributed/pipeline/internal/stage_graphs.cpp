#include "tapestry/distributed/pipeline/internal/stage_graphs.h"

#include <algorithm>

#include "tapestry/autograd/checkpoint.h"
#include "tapestry/autograd/ops/creation.h"
#include "tapestry/autograd/ops/elementwise.h"
#include "tapestry/core/error.h"
#include "tapestry/core/timeline.h"

namespace tapestry::distributed {

Stamp::Stamp(Device device) : device_(device) {
  if (device.is_cuda()) event_.record(current_stream(device));
  else time_ = std::chrono::steady_clock::now();
}

double Stamp::seconds_since(const Stamp& begin) const {
  if (!device_.is_cuda()) return std::chrono::duration<double>(time_ - begin.time_).count();
  event_.synchronize();
  return event_.milliseconds_since(begin.event_) / 1000;
}

StageGraphs::StageGraphs(const Stage& stage, const PipelineOptions& options, int micro_batches, bool records,
                         const char* row, const Ways* ways)
    : stage_(stage),
      records_(records),
      checkpoints_(records && options.checkpoint),
      postpones_weights_(options.schedule == Schedule::zero_bubble),
      row_(row ? row : stage.device().str()),
      ways_(ways),
      graphs_(static_cast<std::size_t>(micro_batches)) {}

template <class F>
void StageGraphs::timed(Part part, int micro_batch, Device clock, const F& f) {
  static constexpr const char* kNames[] = {"forward", "backward", "weights", "receive"};
  static constexpr Activity kActivities[] = {Activity::forward, Activity::backward, Activity::backward,
                                             Activity::communication};
  const auto i = static_cast<std::size_t>(part);
  const SpanScope span(clock, kActivities[i], kNames[i], micro_batch, row_.c_str());
  Stamp begin(clock);
  f();
  laps_.push_back({part, std::move(begin), Stamp(clock)});
}

std::vector<Tensor> StageGraphs::receive(const std::vector<Tensor>& tensors, int micro_batch,
                                         const Departure* departure) {
  std::vector<Tensor> here = tensors;
  const Device device = stage_.device();
  for (Tensor& t : here) {
    if (!t.defined() || t.device() == device) continue;
    bytes_received_ += static_cast<std::int64_t>(t.nbytes());
    if (departure && ways_ && device.is_cuda()) {
      const Stream consumer = current_stream(device);
      departure->out.wait(departure->ready);  // what is timed begins there
      const StreamGuard guard(departure->out);
      timed(Part::receive, micro_batch, t.device(), [&] { t = hand_over(t, departure, consumer, *ways_); });
    } else {
      const NoGradGuard no_grad;
      timed(Part::receive, micro_batch, device, [&] { t = t.to(device); });
    }
  }
  return here;
}

void StageGraphs::send_off(Parcel& parcel) const {
  if (ways_) parcel.departure = depart(stage_.device(), *ways_);
}

Parcel StageGraphs::forward(int micro_batch, const Parcel& inputs, LossPart* loss) {
  std::vector<Tensor> here = receive(inputs.tensors, micro_batch, inputs.departure.get()), targets;
  if (loss) targets = receive(loss->targets, micro_batch);
  Graph& graph = graphs_[static_cast<std::size_t>(micro_batch)];
  graph.inputs.resize(here.size());
  for (std::size_t k = 0; k < here.size() && records_; ++k) {
    if (!here[k].defined()) continue;
    here[k] = here[k].detach();
    if (inputs.wants_gradient[k]) graph.inputs[k] = here[k].set_requires_grad();
  }
  timed(Part::forward, micro_batch, stage_.device(), [&] {
    const auto run = [this](const std::vector<Tensor>& x) { return stage_(x); };
    graph.outputs = checkpoints_ ? tapestry::checkpoint(run, here) : run(here);
    const auto defined = [](const Tensor& t) { return t.defined(); };
    check(std::any_of(graph.outputs.begin(), graph.outputs.end(), defined), "[Pipeline] ", stage_.name(),
          " returned no tensor; return one or more, which the next stage or the loss gets");
    if (loss) compute_loss(graph, *loss, targets);
  });
  peak_ = std::max(peak_, ++alive_);
  Parcel parcel;
  for (const Tensor& t : graph.outputs) {
    parcel.tensors.push_back(t.defined() ? t.detach() : t);
    parcel.wants_gradient.push_back(t.defined() && t.requires_grad());
  }
  send_off(parcel);
  if (!records_) {
    graph = {};
    --alive_;
  }
  return parcel;
}

void StageGraphs::compute_loss(Graph& graph, LossPart& part, const std::vector<Tensor>& targets) {
  const Tensor loss = part.fn(graph.outputs, targets);
  check(loss.defined(), "[Pipeline] the loss is no tensor; return one number, the mean over the micro-batch");
  check(loss.numel() == 1 && is_floating(loss.dtype()), "[Pipeline] the loss is ", loss.dtype(), " ",
        loss.sizes(), "; return one floating number, the mean over the micro-batch");
  check<DeviceError>(loss.device() == stage_.device(), "[Pipeline] the loss is on ", loss.device(),
                     "; compute it on ", stage_.device(), ", the last stage's device");
  check<AutogradError>(loss.requires_grad(),
                       "[Pipeline] the loss was not recorded: nothing it was computed from requires "
                       "gradients; train a parameter, or evaluate with pipeline(inputs)");
  const NoGradGuard no_grad;
  part.value = loss.detach().reshape({}) * part.weight;
  graph.outputs = {loss};
  graph.seeds = {full(loss.sizes(), part.weight, {loss.dtype(), loss.device()})};
}

namespace {

// The outputs that have gradients, and these.
std::pair<std::vector<Tensor>, std::vector<Tensor>> roots_of(const std::vector<Tensor>& outputs,
                                                             const std::vector<Tensor>& gradients) {
  std::pair<std::vector<Tensor>, std::vector<Tensor>> found;
  for (std::size_t k = 0; k < outputs.size(); ++k) {
    if (!gradients[k].defined() || !outputs[k].requires_grad()) continue;
    found.first.push_back(outputs[k]);
    found.second.push_back(gradients[k]);
  }
  return found;
}

}  // namespace

Parcel StageGraphs::backward(int micro_batch, const Parcel& gradients) {
  const std::vector<Tensor> here = receive(gradients.tensors, micro_batch, gradients.departure.get());
  Graph& graph = graphs_[static_cast<std::size_t>(micro_batch)];
  if (graph.seeds.empty()) graph.seeds = here;
  Parcel parcel;
  timed(Part::backward, micro_batch, stage_.device(), [&] {
    const auto [roots, seeds] = roots_of(graph.outputs, graph.seeds);
    std::vector<Tensor> leaves;
    for (const Tensor& t : graph.inputs)
      if (t.defined()) leaves.push_back(t);
    // Without any, all of it is the weights'.
    if (postpones_weights_ && leaves.empty()) return parcel.tensors.resize(graph.inputs.size());
    std::vector<Tensor> of_leaves(leaves.size());
    if (postpones_weights_ && !roots.empty()) {
      of_leaves = autograd::backward_inputs(roots, leaves, seeds, graph.rest.emplace());
    } else if (!roots.empty()) {
      autograd::backward(roots, seeds);
      for (std::size_t i = 0; i < leaves.size(); ++i) of_leaves[i] = leaves[i].grad();
    }
    auto next = of_leaves.begin();
    for (const Tensor& t : graph.inputs) parcel.tensors.push_back(t.defined() ? *next++ : t);
    graph.inputs = graph.outputs = graph.seeds = {};
  });
  send_off(parcel);
  alive_ -= !postpones_weights_;
  return parcel;
}

void StageGraphs::weights(int micro_batch) {
  Graph& graph = graphs_[static_cast<std::size_t>(micro_batch)];
  timed(Part::weights, micro_batch, stage_.device(), [&] {
    if (graph.rest) {
      graph.rest->accumulate();
    } else if (const auto [roots, seeds] = roots_of(graph.outputs, graph.seeds); !roots.empty()) {
      autograd::backward(roots, seeds);
    }
    graph = {};
  });
  --alive_;
}

StageReport StageGraphs::report() const {
  StageReport report;
  report.name = stage_.name();
  report.device = stage_.device();
  report.bytes_received = bytes_received_;
  report.peak_micro_batches = peak_;
  for (const Lap& lap : laps_) {
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
