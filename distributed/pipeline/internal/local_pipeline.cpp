#include "tapestry/distributed/pipeline/internal/local_pipeline.h"

#include <algorithm>
#include <optional>

#include "tapestry/autograd/engine.h"
#include "tapestry/autograd/ops/elementwise.h"
#include "tapestry/core/error.h"
#include "tapestry/core/internal/worker.h"
#include "tapestry/distributed/ddp/job.h"
#include "tapestry/distributed/pipeline/internal/mail.h"
#include "tapestry/distributed/pipeline/internal/state.h"
#include "tapestry/nn/clip.h"

namespace tapestry::distributed {
namespace {

using Kind = Action::Kind;

// The lists of stages as one a device, in an order in which no device waits for itself.
std::vector<std::vector<TimedAction>> by_device(const std::vector<std::vector<Action>>& actions,
                                                const std::vector<std::size_t>& device_of) {
  SimulationOptions options;
  const bool splits = std::any_of(actions[0].begin(), actions[0].end(),
                                  [](const Action& a) { return a.kind == Kind::weights; });
  options.costs.assign(actions.size(), {.forward = 1, .backward = splits ? 1.0 : 2.0, .weights = 1});
  for (const std::size_t d : device_of) options.devices.push_back(static_cast<int>(d));
  return simulate(actions, options).devices;
}

// Runs task(i) for each device, all at once; on the calling thread if there is only one.
void on_devices(std::span<const Device> devices, const std::function<void(std::size_t)>& task) {
  if (devices.size() > 1) return on_workers(devices, [&](int i) { task(static_cast<std::size_t>(i)); });
  named_in_errors(concat({"on ", devices[0]}), [&] { task(0); });
}

std::string place_of(std::size_t s, const Stage& stage) { return concat({"stage ", s, ", ", stage.name()}); }

TensorList joined(const TensorList& a, const TensorList& b) {
  TensorList all = a;
  all.tensors.insert(all.tensors.end(), b.tensors.begin(), b.tensors.end());
  all.whole.insert(all.whole.end(), b.whole.begin(), b.whole.end());
  return all;
}

}  // namespace

/// One call: the batch in micro-batches, and what becomes of them.
struct LocalPipeline::Pass {
  const std::vector<std::int64_t> shares;  // samples, by micro-batch
  std::vector<std::vector<Tensor>> inputs = {}, targets = {};
  std::vector<bool> wants_gradient = {};               // of the inputs
  const Pipeline::LossFunction* loss_fn = nullptr;     // null: forward only
  std::vector<std::vector<TimedAction>> actions = {};  // by device

  Mail mail;
  Tensor loss = {};
  std::vector<std::vector<Tensor>> results;  // by micro-batch: gradients of inputs, or outputs
  std::vector<Tensor> gathered = {};         // those outputs
  Times times = {};

  Pass(std::vector<std::int64_t> samples, int timeout_s)
      : shares(std::move(samples)), mail(std::chrono::seconds(timeout_s)), results(shares.size()) {}
};

LocalPipeline::LocalPipeline(const std::vector<Stage>& stages, const PipelineOptions& options)
    : stages_(stages), options_(options) {
  check(!stages.empty(), "[Pipeline] there are no stages; name one or more");
  check(options.micro_batches >= 1, "[Pipeline] ", options.micro_batches,
        " micro-batches; cut a batch into one or more");
  check(
      options.tied.empty(),
      "[Pipeline] .tied names weights of several ranks; in one process assign one parameter to both modules: "
      "head.weight = embedding.weight");
  check(options.timeout_s >= 1, "[Pipeline] timeout_s is ", options.timeout_s, "; give a second or more");
  for (std::size_t s = 0; s < stages.size(); ++s) {
    const Device device = stages[s].device();
    named_in_errors(place_of(s, stages[s]), [&] { check_device("Pipeline", device); });
    const auto known = std::find(devices_.begin(), devices_.end(), device);
    device_of_.push_back(static_cast<std::size_t>(known - devices_.begin()));
    if (known == devices_.end()) {
      devices_.push_back(device);
      ways_.emplace_back(device);
    }
    generators_.push_back(std::make_unique<Generator>());
  }
  tied_ = std::make_unique<TiedParameters>(stages_, devices_, device_of_);
}
LocalPipeline::~LocalPipeline() = default;

// Stages draw from streams of their own, which follow from the first one's generator: the same numbers under
// every schedule and wherever stages are, and in a run that is resumed what it would have drawn.
void LocalPipeline::seed_generators() {
  const auto [seed, offset] = current_generator(devices_[0]).state();
  for (std::size_t s = 0; s < stages_.size(); ++s)
    generators_[s]->set_state({s == 0 ? seed : rank_seed(seed, static_cast<int>(s)), offset});
}
void LocalPipeline::advance_generator() const {
  Generator& first = current_generator(devices_[0]);
  std::uint64_t furthest = first.state()[1];
  for (const auto& generator : generators_) furthest = std::max(furthest, generator->state()[1]);
  first.take(furthest - first.state()[1]);
}

void LocalPipeline::run(Pass& pass) {
  const int stages = static_cast<int>(stages_.size()), count = static_cast<int>(pass.shares.size());
  const bool trains = pass.loss_fn != nullptr;
  pass.actions =
      by_device(trains ? schedule_actions(options_.schedule, stages, count) : forward_actions(stages, count),
                device_of_);
  for (std::size_t s = 0; s < stages_.size(); ++s)
    pass.times.stages.emplace_back(stages_[s], options_, count, trains, nullptr, &ways_[device_of_[s]]);
  for (const Device d : devices_) {
    check(!device_worker(d).is_current(), "[Pipeline] called by the worker of ", d,
          ", on which a stage runs; call it from another thread");
    pass.times.devices.emplace_back(Stamp(d), Stamp(d));
  }
  tied_->check_places();
  seed_generators();
  const bool anomaly = autograd::DetectAnomaly::active();
  const auto began = std::chrono::steady_clock::now();
  try {
    tied_->begin();
    on_devices(devices_, [&](std::size_t device) {
      std::optional<autograd::DetectAnomaly> detect;
      if (anomaly) detect.emplace();
      try {
        work(pass, device);
      } catch (...) {
        pass.mail.close();
        throw;
      }
    });
  } catch (...) {
    tied_->end();
    throw;
  }
  tied_->end();
  tied_->add_gradients();
  advance_generator();
  const std::chrono::duration<double> wall = std::chrono::steady_clock::now() - began;
  pass.times.wall_s = wall.count();
  pass.times.micro_batches = count;
  last_ = std::move(pass.times);
}

// On the worker of the device.
void LocalPipeline::work(Pass& pass, std::size_t device) const {
  const Device here = devices_[device];
  Context context = current_context();
  context.device = here;
  if (!pass.loss_fn) context.grad_enabled = false;
  const ContextGuard guard(context);
  auto& [begin, end] = pass.times.devices[device];
  begin = Stamp(here);
  tied_->refresh(device);
  for (const TimedAction& timed : pass.actions[device])
    if (pass.mail.is_closed() || !act(pass, timed)) return;
  if (!pass.loss_fn && device_of_.back() == device) pass.gathered = gather_tensors(pass.results, here);
  end = Stamp(here);
}

// False if it cannot be done because another stage failed.
bool LocalPipeline::act(Pass& pass, const TimedAction& timed) const {
  const auto s = static_cast<std::size_t>(timed.stage);
  const Kind kind = timed.action.kind;
  const int micro_batch = timed.action.micro_batch;
  Context context = current_context();
  context.replica = tied_->replica(s);
  context.generator = generators_[s].get();
  const ContextGuard guard(context);
  bool done = true;
  named_in_errors(concat({place_of(s, stages_[s]), ", ", kind_name(kind), " of micro-batch ", micro_batch}),
                  [&] {
                    switch (kind) {
                      case Kind::forward:
                        done = forward(pass, s, micro_batch);
                        break;
                      case Kind::backward:
                        done = backward(pass, s, micro_batch);
                        break;
                      case Kind::weights:
                        pass.times.stages[s].weights(micro_batch);
                        break;
                    }
                  });
  return done;
}

bool LocalPipeline::forward(Pass& pass, std::size_t s, int micro_batch) const {
  const auto m = static_cast<std::size_t>(micro_batch);
  std::optional<Parcel> inputs = Parcel{pass.inputs[m], pass.wants_gradient};
  if (s > 0) inputs = pass.mail.take({s, {Kind::forward, micro_batch}});
  if (!inputs) return false;
  if (s + 1 < stages_.size()) {
    pass.mail.put({s + 1, {Kind::forward, micro_batch}}, pass.times.stages[s].forward(micro_batch, *inputs));
  } else if (!pass.loss_fn) {
    pass.results[m] = pass.times.stages[s].forward(micro_batch, *inputs).tensors;
  } else {
    LossPart part{*pass.loss_fn, pass.targets[m], weight_of(pass.shares, m)};
    pass.times.stages[s].forward(micro_batch, *inputs, &part);
    const NoGradGuard no_grad;
    pass.loss = pass.loss.defined() ? pass.loss + part.value : part.value;
  }
  return true;
}

bool LocalPipeline::backward(Pass& pass, std::size_t s, int micro_batch) const {
  std::optional<Parcel> gradients = Parcel();
  if (s + 1 < stages_.size()) gradients = pass.mail.take({s, {Kind::backward, micro_batch}});
  if (!gradients) return false;
  Parcel of_inputs = pass.times.stages[s].backward(micro_batch, *gradients);
  if (s > 0) pass.mail.put({s - 1, {Kind::backward, micro_batch}}, std::move(of_inputs));
  else pass.results[static_cast<std::size_t>(micro_batch)] = std::move(of_inputs.tensors);
  return true;
}

Tensor LocalPipeline::forward_backward(const TensorList& inputs, const TensorList& targets,
                                       const Pipeline::LossFunction& loss) {
  check_grad_mode();
  const TensorList batch = joined(inputs, targets);
  std::vector<std::int64_t> shares;
  named_in_errors(concat({"before ", place_of(0, stages_[0]), ", on ", devices_[0]}), [&] {
    shares = micro_batch_shares(samples_in("Pipeline", batch), options_.micro_batches, !options_.uneven);
  });
  Pass pass(std::move(shares), options_.timeout_s);
  pass.loss_fn = &loss;
  for (const Tensor& t : inputs.tensors) pass.wants_gradient.push_back(t.defined() && t.requires_grad());
  check_targets(targets);
  {
    const NoGradGuard no_grad;
    const auto end_of_inputs = static_cast<std::ptrdiff_t>(inputs.tensors.size());
    for (auto& part : split_tensors(batch, pass.shares)) {
      pass.targets.emplace_back(part.begin() + end_of_inputs, part.end());
      pass.inputs.emplace_back(part.begin(), part.begin() + end_of_inputs);
    }
  }
  run(pass);
  return_gradients(inputs, pass.wants_gradient, pass.inputs, pass.results);
  return pass.loss;
}

std::vector<Tensor> LocalPipeline::evaluate(const TensorList& inputs) {
  const NoGradGuard no_grad;
  Pass pass(micro_batch_shares(samples_in("Pipeline", inputs), options_.micro_batches, false),
            options_.timeout_s);
  pass.wants_gradient.resize(inputs.tensors.size());
  pass.inputs = split_tensors(inputs, pass.shares);
  run(pass);
  return std::move(pass.gathered);
}

PipelineReport LocalPipeline::report() const {
  PipelineReport report;
  report.micro_batches = last_.micro_batches;
  std::vector<double> busy(devices_.size());
  for (std::size_t s = 0; s < last_.stages.size(); ++s) {
    report.stages.push_back(last_.stages[s].report());
    const StageReport& stage = report.stages.back();
    busy[device_of_[s]] += stage.forward_s + stage.backward_s;
    if (stage.device.is_cpu()) busy[device_of_[s]] += stage.receive_s;  // a GPU computes meanwhile
  }
  double longest = 0, idle = 0;
  for (const auto& [begin, end] : last_.devices) longest = std::max(longest, end.seconds_since(begin));
  for (const double b : busy) idle += longest - b;
  for (std::size_t s = 0; s < report.stages.size(); ++s)
    report.stages[s].idle_s = longest - busy[device_of_[s]];
  if (longest > 0) report.bubble = idle / (longest * static_cast<double>(devices_.size()));
  report.wall_s = std::max(last_.wall_s, longest);  // the host does not wait for a GPU
  return report;
}

Tensor LocalPipeline::clip_grad_norm_(const std::vector<nn::Parameter>& parameters, double max_norm,
                                      double norm_type, bool error_if_nonfinite) const {
  return nn::clip_grad_norm_(parameters, max_norm, norm_type, error_if_nonfinite);
}

nn::StateDict LocalPipeline::whole_state_dict() const { return state_of(stages_); }

nn::LoadResult LocalPipeline::load_state_dict(const nn::StateDict& dict, bool strict) {
  const nn::StateDict own = state_of(stages_);
  return StateMatch(own, {}, dict, strict).load();
}

}  // namespace tapestry::distributed
