#include "tapestry/distributed/pipeline/internal/local_pipeline.h"

#include <algorithm>
#include <optional>

#include "tapestry/autograd/engine.h"
#include "tapestry/autograd/ops/elementwise.h"
#include "tapestry/core/error.h"
#include "tapestry/core/internal/worker.h"
#include "tapestry/distributed/common/seeds.h"
#include "tapestry/distributed/pipeline/internal/mailbox.h"
#include "tapestry/distributed/pipeline/internal/state_dict.h"
#include "tapestry/nn/clip.h"

namespace tapestry::distributed {
namespace {

using Kind = Action::Kind;

// Merges the actions of the stages on each device into one list per device. The lists have the order of a
// simulation, so that no action waits for a later one on the same device.
std::vector<std::vector<TimedAction>> by_device(const std::vector<std::vector<Action>>& actions,
                                                const std::vector<std::size_t>& device_of) {
  SimulationOptions options;
  const bool splits = std::any_of(actions[0].begin(), actions[0].end(),
                                  [](const Action& a) { return a.kind == Kind::weights; });
  options.costs.assign(actions.size(), {.forward = 1, .backward = splits ? 1.0 : 2.0, .weights = 1});
  for (const std::size_t d : device_of) options.devices.push_back(static_cast<int>(d));
  return simulate(actions, options).devices;
}

// Runs task(i) for each device, all at the same time. If there is only one, it runs on the calling thread.
void on_devices(std::span<const Device> devices, const std::function<void(std::size_t)>& task) {
  if (devices.size() > 1) return on_workers(devices, [&](int i) { task(static_cast<std::size_t>(i)); });
  with_error_context(concat({"on ", devices[0]}), [&] { task(0); });
}

std::string stage_text(std::size_t s, const Stage& stage) {
  return concat({"stage ", s, ", ", stage.name()});
}

TensorList joined(const TensorList& a, const TensorList& b) {
  TensorList all = a;
  all.tensors.insert(all.tensors.end(), b.tensors.begin(), b.tensors.end());
  all.whole.insert(all.whole.end(), b.whole.begin(), b.whole.end());
  return all;
}

}  // namespace

/// One call of forward_backward() or evaluate().
struct LocalPipeline::Pass {
  const std::vector<std::int64_t> sizes;  // samples, by micro-batch
  std::vector<std::vector<Tensor>> inputs = {}, targets = {};
  std::vector<bool> requires_grad = {};                // by input
  const Pipeline::LossFunction* loss_fn = nullptr;     // null: forward only
  std::vector<std::vector<TimedAction>> actions = {};  // by device

  Mailbox mailbox;
  Tensor loss = {};
  std::vector<std::vector<Tensor>> results;  // by micro-batch: gradients of inputs if it trains, else outputs
  std::vector<Tensor> gathered = {};         // the outputs of all micro-batches
  Times times = {};

  Pass(std::vector<std::int64_t> samples, int timeout_s)
      : sizes(std::move(samples)), mailbox(std::chrono::seconds(timeout_s)), results(sizes.size()) {}
};

LocalPipeline::LocalPipeline(const std::vector<Stage>& stages, const PipelineOptions& options)
    : stages_(stages), options_(options) {
  check(!stages.empty(), "[Pipeline] there are no stages; name one or more");
  check(options.micro_batches >= 1, "[Pipeline] ", options.micro_batches,
        " micro-batches; split a batch into one or more");
  check(options.tied.empty(),
        "[Pipeline] .tied is for weights of several ranks; in one process assign one parameter to both "
        "modules: "
        "head.weight = embedding.weight");
  check(options.timeout_s >= 1, "[Pipeline] timeout_s is ", options.timeout_s, "; give 1 second or more");
  for (std::size_t s = 0; s < stages.size(); ++s) {
    const Device device = stages[s].device();
    with_error_context(stage_text(s, stages[s]), [&] { check_device("Pipeline", device); });
    const auto known = std::find(devices_.begin(), devices_.end(), device);
    device_of_.push_back(static_cast<std::size_t>(known - devices_.begin()));
    if (known == devices_.end()) {
      devices_.push_back(device);
      copy_streams_.emplace_back(device);
    }
    generators_.push_back(std::make_unique<Generator>());
  }
  tied_parameters_ = std::make_unique<TiedParameters>(stages_, devices_, device_of_);
}
LocalPipeline::~LocalPipeline() = default;

// Each stage has its own generator, derived from the generator of the first stage's device. So the numbers do
// not depend on the schedule or the devices, and a resumed run draws the same numbers as an uninterrupted
// one.
void LocalPipeline::seed_generators() {
  const auto [seed, offset] = current_generator(devices_[0]).state();
  for (std::size_t s = 0; s < stages_.size(); ++s)
    generators_[s]->set_state({s == 0 ? seed : rank_seed(seed, static_cast<int>(s)), offset});
}
void LocalPipeline::advance_generator() const {
  Generator& first = current_generator(devices_[0]);
  std::uint64_t max_rng_offset = first.state()[1];
  for (const auto& generator : generators_) max_rng_offset = std::max(max_rng_offset, generator->state()[1]);
  first.take(max_rng_offset - first.state()[1]);
}

void LocalPipeline::run(Pass& pass) {
  const int stages = static_cast<int>(stages_.size()), count = static_cast<int>(pass.sizes.size());
  const bool trains = pass.loss_fn != nullptr;
  pass.actions =
      by_device(trains ? schedule_actions(options_.schedule, stages, count) : forward_actions(stages, count),
                device_of_);
  for (std::size_t s = 0; s < stages_.size(); ++s)
    pass.times.stages.emplace_back(stages_[s], options_, count, trains, nullptr,
                                   &copy_streams_[device_of_[s]]);
  for (const Device d : devices_) {
    check(!device_worker(d).is_current(), "[Pipeline] called on the worker thread of ", d,
          ", which runs a stage; call it from another thread");
    pass.times.devices.emplace_back(Timestamp(d), Timestamp(d));
  }
  tied_parameters_->check_places();
  seed_generators();
  const bool anomaly = autograd::DetectAnomaly::active();
  const auto began = std::chrono::steady_clock::now();
  try {
    tied_parameters_->attach_replicas();
    on_devices(devices_, [&](std::size_t device) {
      std::optional<autograd::DetectAnomaly> detect;
      if (anomaly) detect.emplace();
      try {
        run_device(pass, device);
      } catch (...) {
        pass.mailbox.close();
        throw;
      }
    });
  } catch (...) {
    tied_parameters_->detach_replicas();
    throw;
  }
  tied_parameters_->detach_replicas();
  tied_parameters_->add_gradients();
  advance_generator();
  const std::chrono::duration<double> wall = std::chrono::steady_clock::now() - began;
  pass.times.wall_s = wall.count();
  pass.times.micro_batches = count;
  last_ = std::move(pass.times);
}

// Runs on the worker of the device.
void LocalPipeline::run_device(Pass& pass, std::size_t device) const {
  const Device here = devices_[device];
  Context context = current_context();
  context.device = here;
  if (!pass.loss_fn) context.grad_enabled = false;
  const ContextGuard guard(context);
  auto& [begin, end] = pass.times.devices[device];
  begin = Timestamp(here);
  tied_parameters_->update_replicas(device);
  for (const TimedAction& timed : pass.actions[device])
    if (pass.mailbox.is_closed() || !run_action(pass, timed)) return;
  if (!pass.loss_fn && device_of_.back() == device) pass.gathered = gather_tensors(pass.results, here);
  end = Timestamp(here);
}

// Returns false if the pass has ended because another stage failed.
bool LocalPipeline::run_action(Pass& pass, const TimedAction& timed) const {
  const auto s = static_cast<std::size_t>(timed.stage);
  const Kind kind = timed.action.kind;
  const int micro_batch = timed.action.micro_batch;
  Context context = current_context();
  context.replica = tied_parameters_->replica(s);
  context.generator = generators_[s].get();
  const ContextGuard guard(context);
  bool done = true;
  with_error_context(
      concat({stage_text(s, stages_[s]), ", ", kind_name(kind), " of micro-batch ", micro_batch}), [&] {
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
  std::optional<Message> inputs = Message{pass.inputs[m], pass.requires_grad};
  if (s > 0) inputs = pass.mailbox.take({s, {Kind::forward, micro_batch}});
  if (!inputs) return false;
  if (s + 1 < stages_.size()) {
    pass.mailbox.put({s + 1, {Kind::forward, micro_batch}},
                     pass.times.stages[s].forward(micro_batch, *inputs));
  } else if (!pass.loss_fn) {
    pass.results[m] = pass.times.stages[s].forward(micro_batch, *inputs).tensors;
  } else {
    MicroBatchLoss part{*pass.loss_fn, pass.targets[m], weight_of(options_, pass.sizes, m)};
    pass.times.stages[s].forward(micro_batch, *inputs, &part);
    const NoGradGuard no_grad;
    pass.loss = pass.loss.defined() ? pass.loss + part.value : part.value;
  }
  return true;
}

bool LocalPipeline::backward(Pass& pass, std::size_t s, int micro_batch) const {
  std::optional<Message> gradients = Message();
  if (s + 1 < stages_.size()) gradients = pass.mailbox.take({s, {Kind::backward, micro_batch}});
  if (!gradients) return false;
  Message of_inputs = pass.times.stages[s].backward(micro_batch, std::move(*gradients));
  if (s > 0) pass.mailbox.put({s - 1, {Kind::backward, micro_batch}}, std::move(of_inputs));
  else pass.results[static_cast<std::size_t>(micro_batch)] = std::move(of_inputs.tensors);
  return true;
}

Tensor LocalPipeline::forward_backward(const TensorList& inputs, const TensorList& targets,
                                       const Pipeline::LossFunction& loss) {
  check_grad_mode();
  const TensorList batch = joined(inputs, targets);
  std::vector<std::int64_t> sizes;
  with_error_context(concat({"before ", stage_text(0, stages_[0]), ", on ", devices_[0]}), [&] {
    sizes = micro_batch_sizes(samples_in("Pipeline", batch), options_.micro_batches, !options_.uneven);
  });
  Pass pass(std::move(sizes), options_.timeout_s);
  pass.loss_fn = &loss;
  for (const Tensor& t : inputs.tensors) pass.requires_grad.push_back(t.defined() && t.requires_grad());
  check_targets(targets);
  {
    const NoGradGuard no_grad;
    const auto end_of_inputs = static_cast<std::ptrdiff_t>(inputs.tensors.size());
    for (auto& part : split_tensors(batch, pass.sizes)) {
      pass.targets.emplace_back(part.begin() + end_of_inputs, part.end());
      pass.inputs.emplace_back(part.begin(), part.begin() + end_of_inputs);
    }
  }
  run(pass);
  backward_to_inputs(inputs, pass.requires_grad, pass.inputs, pass.results);
  return pass.loss;
}

std::vector<Tensor> LocalPipeline::evaluate(const TensorList& inputs) {
  const NoGradGuard no_grad;
  Pass pass(micro_batch_sizes(samples_in("Pipeline", inputs), options_.micro_batches, false),
            options_.timeout_s);
  pass.requires_grad.resize(inputs.tensors.size());
  pass.inputs = split_tensors(inputs, pass.sizes);
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
    // A GPU computes while it receives, so receiving does not add to its busy time.
    if (stage.device.is_cpu()) busy[device_of_[s]] += stage.receive_s;
  }
  double longest = 0, idle = 0;
  for (const auto& [begin, end] : last_.devices) longest = std::max(longest, end.seconds_since(begin));
  for (const double b : busy) idle += longest - b;
  for (std::size_t s = 0; s < report.stages.size(); ++s)
    report.stages[s].idle_s = longest - busy[device_of_[s]];
  if (longest > 0) report.bubble = idle / (longest * static_cast<double>(devices_.size()));
  report.wall_s = std::max(last_.wall_s, longest);  // a GPU may finish after the host has returned
  return report;
}

Tensor LocalPipeline::clip_grad_norm_(const std::vector<nn::Parameter>& parameters, double max_norm,
                                      double norm_type, bool error_if_nonfinite) const {
  return nn::clip_grad_norm_(parameters, max_norm, norm_type, error_if_nonfinite);
}

nn::StateDict LocalPipeline::whole_state_dict() const { return state_dict_of(stages_); }

nn::LoadResult LocalPipeline::load_state_dict(const nn::StateDict& dict, bool strict) {
  const nn::StateDict own = state_dict_of(stages_);
  return StateDictLoader(own, {}, dict, strict).load();
}

}  // namespace tapestry::distributed
