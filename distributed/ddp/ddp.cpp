#include "tapestry/distributed/ddp/ddp.h"

#include <algorithm>
#include <bit>
#include <functional>
#include <unordered_map>

#include "tapestry/distributed/common/internal/join_scope.h"
#include "tapestry/distributed/common/internal/rank_drift.h"
#include "tapestry/distributed/common/internal/reducer.h"
#include "tapestry/distributed/common/internal/same_model.h"
#include "tapestry/distributed/common/kernel_choices.h"
#include "tapestry/nn/internal/stored.h"
#include "tapestry/nn/internal/undivided.h"
#include "tapestry/nn/optim/optimizer.h"

namespace tapestry::distributed {
namespace {

void check_devices(const NamedTensors& parameters, const DdpOptions& options) {
  const auto among = [&](Device d) {
    return std::find(options.device_ids.begin(), options.device_ids.end(), d) != options.device_ids.end();
  };
  for (const auto& [name, t] : parameters)
    check<DeviceError>(options.device_ids.empty() || among(t.device()), "[DistributedDataParallel] ", name,
                       " is on ", t.device(),
                       ", which is not among device_ids; move the model to one of them with to() first");
  check<DeviceError>(
      !options.output_device || options.device_ids.empty() || among(*options.output_device),
      "[DistributedDataParallel] output_device is not among device_ids; add it, or leave output_device out: "
      "the output stays where the model computes it");
}

}  // namespace

struct DdpBase::State {
  nn::Module& model;
  std::shared_ptr<ProcessGroup> group;
  bool broadcast_buffers, sums;
  std::unordered_map<const void*, nn::Parameter> ignored;  // by TensorSlot::id(), unique while a slot exists
  NamedTensors parameters;  // the parameters of the model when it was wrapped, but the ignored ones
  std::vector<bool> trained;
  std::unique_ptr<Reducer> reducer;
  std::unique_ptr<RankDrift> drift;
  JoinScope* join = nullptr;
  std::int64_t steps_at_last_pass = -1;  // of the optimizers, on a rank that has not joined

  // Called at the beginning of every pass in join(), on all ranks, when it has been announced.
  void begin_joined_pass() {
    steps_at_last_pass = join->lead_number();
    reducer->some_joined = join->some_joined();
    if (!sums) reducer->mean_factor = group->size() / join->divisor();
  }

  nn::NamedSlots own_parameters() const {
    nn::NamedSlots own;
    for (const auto& [name, slot] : model.named_parameters())
      if (!ignored.contains(slot.id())) own.emplace_back(name, slot);
    return own;
  }

  NamedTensors buffers() const {
    NamedTensors tensors;
    for (const auto& [name, slot] : model.named_buffers()) tensors.emplace_back(name, slot.tensor());
    return tensors;
  }

  // The reducer knows only the tensors that were parameters when the model was wrapped. The gradient of a
  // parameter that was added or replaced later would not be averaged, and nothing else would report that.
  void check_parameters() const {
    const nn::NamedSlots now = own_parameters();
    const char* const remedy = "; wrap the model again, on all ranks, after its last change";
    check(now.size() == parameters.size(), "[DistributedDataParallel] the model has ", now.size(),
          " parameters, but had ", parameters.size(), " when it was wrapped", remedy);
    for (std::size_t i = 0; i < now.size(); ++i) {
      const auto& [name, slot] = now[i];
      check(slot.tensor().is_same(parameters[i].second), "[DistributedDataParallel] ", name,
            " is not the tensor that it was when the model was wrapped; to(device) and to(dtype) replace "
            "tensors",
            remedy);
      check(trained[i] || !slot.tensor().requires_grad() || nn::is_of_other_stage(slot),
            "[DistributedDataParallel] ", name, " requires gradients, but did not when the model was wrapped",
            remedy);
    }
  }
};

DdpBase::DdpBase(nn::Module& model, const DdpOptions& options) {
  check(options.process_group != nullptr,
        "[DistributedDataParallel] process_group is null; pass what init_process_group() returned");
  check(options.reduce == ReduceOp::mean || options.reduce == ReduceOp::sum,
        "[DistributedDataParallel] reduce must be ReduceOp::mean or ReduceOp::sum");
  if (options.process_group->size() > 1) {
    const std::string why = nn::why_not_divided(model);
    check(why.empty(), "[DistributedDataParallel] ", why);
  }
  state_.reset(new State{model,
                         options.process_group,
                         options.broadcast_buffers,
                         options.reduce == ReduceOp::sum,
                         {},
                         {},
                         {},
                         nullptr,
                         nullptr,
                         nullptr,
                         -1});
  for (const nn::Parameter& p : options.ignored_parameters) state_->ignored.emplace(p.id(), p);
  NamedTensors& all = state_->parameters;
  NamedTensors trained;
  std::string parts;
  for (const auto& [name, slot] : state_->own_parameters()) {
    check(may_have_equal_parts(slot, *state_->group), "[DistributedDataParallel] '", name,
          "' is divided among ranks, which have different parts of its gradient and nothing to average; wrap "
          "the whole model, or train the divided model by itself");
    check(
        slot.replicas() == 1, "[DistributedDataParallel] '", name, "' has ", slot.replicas(),
        " replicas, and only the first one's gradient would be averaged; use one rank per device instead of "
        "DataParallel");
    all.emplace_back(name, slot.tensor());
    parts += describe_part(name, slot);
    state_->trained.push_back(slot.tensor().requires_grad() && !nn::is_of_other_stage(slot));
    if (state_->trained.back()) trained.emplace_back(name, slot.tensor());
  }
  check_devices(all, options);
  ReducerOptions reducer =
      bucket_sizes("DistributedDataParallel", options.bucket_cap_mb, options.first_bucket_mb);
  reducer.find_unused = options.find_unused_parameters;
  reducer.static_graph = options.static_graph;
  reducer.relearn_order = options.relearn_order;
  reducer.reduce = options.reduce;

  const NamedTensors buffers = state_->buffers();
  check_same_model(*state_->group, "DistributedDataParallel",
                   describe_tensors(all, "parameter") + parts + describe_tensors(buffers, "buffer"));
  check(!trained.empty(), "[DistributedDataParallel] no parameter of ", model.type_name(),
        " requires gradients; there is nothing to train");
  broadcast_values(*state_->group, all, "parameters of rank 0");
  broadcast_values(*state_->group, buffers, "buffers of rank 0");
  state_->reducer = std::make_unique<Reducer>(std::move(trained), state_->group, reducer);
  state_->drift = std::make_unique<RankDrift>("DistributedDataParallel", state_->group,
                                              state_->own_parameters(), options.check_every);
  state_->drift->same_stage = true;
  state_->reducer->fingerprint = [state = state_.get()] { return state->drift->fingerprint(); };
  state_->reducer->before_pass = [this, state = state_.get()] {
    state->steps_at_last_pass = static_cast<std::int64_t>(state->drift->steps());
    if (!state->join) return;
    state->join->announce(*this, JoinScope::backward, state->steps_at_last_pass);
    state->begin_joined_pass();
  };
  state_->reducer->compare_values = [state = state_.get()] {
    state->drift->compare_optimizers();
    state->drift->compare_values();
  };
  if (options.paired_with) options.paired_with->state_->reducer->pair_with(*state_->reducer);
  const bool on_gpu = state_->reducer->device().is_cuda();
  if (on_gpu) share_kernel_choices(*state_->group);
  if (!on_gpu && !options.static_graph) return;  // the buckets say in every pass whether the ranks differ
  state_->reducer->after_pass = [state = state_.get(), on_gpu] {
    // Rank 0 measures the shapes that the first passes meet, and later ones when they occur.
    if (on_gpu && std::has_single_bit(state->reducer->passes())) share_kernel_choices(*state->group);
    if (!state->reducer->some_joined) state->drift->after_pass();
  };
}

DdpBase::~DdpBase() = default;

void DdpBase::before_forward() {
  if (!grad_enabled()) return;
  state_->check_parameters();
  if (!state_->broadcast_buffers || !state_->model.is_training()) return;
  if (!state_->join || state_->buffers().empty()) return sync_buffers();
  state_->join->announce(*this, JoinScope::forward);
  shadow(JoinScope::forward);
}

// ---- join ----

void DdpBase::join(const std::function<void()>& body, const JoinOptions& options) {
  distributed::join({this}, body, options);
}

Tensor DdpBase::mean_over_ranks(const Tensor& sum, std::int64_t count) {
  if (state_->join) return distributed::mean_over_ranks(*state_->join, *this, sum, count);
  return distributed::mean_over_ranks(*state_->group, sum, count);
}

const std::shared_ptr<ProcessGroup>& DdpBase::join_group() const { return state_->group; }

std::string DdpBase::why_not_joinable(const JoinScope& scope) const {
  for (optim::Optimizer* o : state_->drift->optimizers())
    if (auto* const joinable = dynamic_cast<Joinable*>(o); joinable && !scope.contains(joinable))
      return "the model has a ZeroRedundancyOptimizer, whose steps are collective; pass it in the list too";
  if (state_->reducer->is_paired())
    return "the model has two DistributedDataParallel that pass together (DdpOptions::paired_with), and a "
           "rank that has joined cannot shadow both; give all ranks as many batches";
  if (scope.options.throw_on_early_termination) return {};
  for (const nn::Module* m : state_->model.modules())
    if (m->type_name() == "SyncBatchNorm")
      return concat(
          {m->path().empty() ? "the model" : m->path(),
           " is a SyncBatchNorm, whose forward is collective, so a rank that has joined cannot shadow "
           "it; set throw_on_early_termination, or use BatchNorm2d"});
  return {};
}

void DdpBase::set_join(JoinScope* scope) {
  state_->join = scope;
  state_->reducer->some_joined = false;
  state_->reducer->mean_factor = 1;
}

void DdpBase::shadow(int action) {
  State& s = *state_;
  if (action == JoinScope::forward)
    return broadcast_values(*s.group, s.buffers(), "buffers in join", s.join->lead());
  if (action != JoinScope::backward) return;
  // The gradients of the last pass count again if the others have not taken a step since.
  const bool keeps = s.join->options.divide_by_initial_world_size && !s.drift->optimizers().empty() &&
                     s.join->lead_number() == s.steps_at_last_pass;
  if (!keeps)
    for (const auto& [name, t] : s.parameters) t.set_grad({});
  s.begin_joined_pass();
  s.reducer->pass_without_gradients();
}

void DdpBase::end_join(int lead) {
  State& s = *state_;
  broadcast_values(*s.group, s.parameters, "parameters after join", lead);
  broadcast_values(*s.group, s.buffers(), "buffers after join", lead);
  for (optim::Optimizer* o : s.drift->optimizers())
    if (!dynamic_cast<Joinable*>(o)) broadcast_optimizer(*s.group, *o, lead);
}

void DdpBase::sync_buffers() { broadcast_values(*state_->group, state_->buffers(), "buffers of rank 0"); }

std::uint64_t DdpBase::passes() const { return state_->reducer->passes(); }
void DdpBase::pass_without_gradients() { state_->reducer->pass_without_gradients(); }
Device DdpBase::device() const { return state_->reducer->device(); }

NoSync DdpBase::no_sync() { return NoSync(state_->reducer->synchronize); }
void DdpBase::set_comm_hook(CommHook hook) { state_->reducer->comm_hook = std::move(hook); }
DdpReport DdpBase::report() const { return state_->reducer->report(); }
const std::vector<std::string>& DdpBase::unused_parameters() const { return state_->reducer->unused(); }
std::vector<std::vector<std::string>> DdpBase::buckets() const { return state_->reducer->bucket_names(); }
ProcessGroup& DdpBase::process_group() const { return *state_->group; }

}  // namespace tapestry::distributed
