#include "tapestry/nn/optim/optimizer.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <type_traits>

#include "tapestry/autograd/ops/creation.h"
#include "tapestry/autograd/ops/view.h"
#include "tapestry/core/cuda/capture.h"
#include "tapestry/core/error.h"
#include "tapestry/core/internal/capture_state.h"
#include "tapestry/core/memory_record.h"
#include "tapestry/core/stream.h"
#include "tapestry/core/timeline.h"
#include "tapestry/kernels/ops/optim.h"
#include "tapestry/nn/internal/masters.h"
#include "tapestry/nn/internal/optimizers_of.h"
#include "tapestry/nn/internal/replica_devices.h"

namespace tapestry::optim {

namespace {

MemoryFormat dense_format(const Tensor& t) {
  return t.is_contiguous() ? MemoryFormat::contiguous : MemoryFormat::channels_last;
}

// Where the box that a rank stores begins in the whole parameter, in elements, if its elements follow one
// another there.
std::optional<std::int64_t> offset_of(const Parameter& slot, int replica) {
  const auto& layout = slot.layout();
  if (!layout) return 0;
  const nn::Boxes own = layout->boxes(replica);
  if (!own.is_one()) return {};
  const nn::Region &box = own.all[0], whole = nn::Region::whole(layout->whole_sizes());
  std::int64_t offset = 0;
  for (int d = 0; d < whole.sizes.size(); ++d) {
    if (d > 0 && box.sizes[d] != whole.sizes[d]) return {};
    offset = offset * whole.sizes[d] + box.first[d];
  }
  return offset;
}

// The name of the option that StepScalars::momentum replaces; null if a captured step must keep it.
const char* moving_momentum(const std::vector<OptionRef>& options, bool keeps_number) {
  if (keeps_number) return nullptr;  // NAdam's number is a product of all steps' factors
  for (const OptionRef& o : options)
    if (std::string_view(o.name) == "beta1" || (std::string_view(o.name) == "momentum" && o.get() != 0))
      return o.name;
  return nullptr;
}

// A tensor that shares the memory of an optimizer's scalars. All captured steps of the optimizer share this
// one handle, so if nothing else uses the memory, the optimizer is gone.
std::shared_ptr<const Tensor> sign_of_life(const Tensor& memory) {
  static std::mutex mutex;
  static auto& all = *new std::map<const Storage*, std::weak_ptr<const Tensor>>;
  const std::lock_guard lock(mutex);
  std::weak_ptr<const Tensor>& known = all[memory.storage().get()];
  auto sign = known.lock();
  if (!sign) known = sign = std::make_shared<const Tensor>(memory.detach());
  return sign;
}

// The scalars of a captured step in device memory, which the host writes before each replay. A graph has
// scalars of its own, because they contain the momentum, which other steps pass as an argument. `eager` is
// the memory of the optimizer's scalars for other steps, `options_now` gives its options and `grad_scale_now`
// its gradient scale. They are called before each replay, as long as the optimizer exists.
const kernels::StepScalars* scalars_in_capture(tapestry::detail::CaptureState& capture, const char* name,
                                               const Tensor& eager, Device device, bool keeps_number,
                                               std::function<std::vector<OptionRef>()> options_now,
                                               std::function<double()> grad_scale_now) {
  struct Written {
    std::shared_ptr<const Tensor> alive;  // its use count tells whether the optimizer still exists
    Tensor memory;
    std::vector<double> options;
    kernels::StepScalars scalars{.lr = NAN, .grad_scale = NAN, .momentum = NAN};
  };
  if (!eager.defined())
    tapestry::detail::refuse_in_capture(
        name, "run the step once before the capture, or raise warm_up, so that the optimizer has its memory");
  Written first{sign_of_life(eager), {}, {}};
  for (const OptionRef& o : options_now()) first.options.push_back(o.get());
  {
    // Not the graph's memory: earlier kernels of the step may have used that, and would overwrite what the
    // host writes before each replay.
    const StreamGuard guard(default_stream(device));
    first.memory = empty({3}, {DType::f64, device});
  }
  const auto* const address = static_cast<const kernels::StepScalars*>(first.memory.raw_data());
  const char* const momentum = moving_momentum(options_now(), keeps_number);
  capture.before_replay.push_back([=, at = std::move(first)]() mutable {
    check(at.alive->storage()->use_count() > 1,
          "[capture] an optimizer of the captured step no longer exists; ",
          "keep it, or capture the step again");
    kernels::StepScalars now{.lr = 0, .grad_scale = grad_scale_now()};
    const std::vector<OptionRef> options = options_now();
    for (std::size_t i = 0; i < options.size(); ++i) {
      const std::string_view option = options[i].name;
      const double value = options[i].get();
      const bool moves = momentum && option == momentum;
      if (option == "lr") now.lr = value;
      if (moves) now.momentum = value;
      check(option == "lr" || (moves && (value != 0 || option == "beta1")) || value == at.options[i], "[",
            name, "] the option ", option, " was ", at.options[i], " when the step was captured and is ",
            value, " now; a replay keeps it, so capture the step again");
    }
    const auto put = [&](double& old, double value, std::int64_t index) {
      if (old != value) at.memory.narrow(0, index, 1).fill_(value);
      old = value;
    };
    put(at.scalars.lr, now.lr, 0);
    put(at.scalars.grad_scale, now.grad_scale, 1);
    put(at.scalars.momentum, now.momentum, 2);
  });
  return address;
}

}  // namespace

// ---- groups and options ----

void OptionRef::set(double value) const {
  if (number) *number = value;
  else if (integer) *integer = value >= -0x1p62 && value <= 0x1p62 ? static_cast<std::int64_t>(value) : -1;
  else *flag = value != 0;
}

Optimizer::Optimizer() = default;
Optimizer::~Optimizer() { delist(*this); }

void Optimizer::add_params(std::vector<Parameter> params) {
  check(!params.empty(), "[", name(), "] the list of parameters is empty; pass module.parameters()");
  std::set<const void*> added;
  for (const Parameter& p : params) {
    check(p.defined(), "[", name(), "] a parameter is undefined; pass registered parameters only");
    check(!known_.contains(p.id()) && added.insert(p.id()).second, "[", name(), "] a parameter of shape ",
          nn::whole_sizes(p), " is given twice; a parameter belongs to one group");
    check_param(p);
  }
  Group group;
  group.states.resize(params.size());
  group.params = std::move(params);
  groups_.push_back(std::move(group));
  known_.merge(added);
  enlist(*this, groups_.back().params);
}

std::vector<Parameter> Optimizer::parameters() const {
  std::vector<Parameter> all;
  for (const Group& g : groups_) all.insert(all.end(), g.params.begin(), g.params.end());
  return all;
}

double Optimizer::option(std::size_t group, std::string_view option_name) const {
  check<IndexError>(group < groups_.size(), "[", name(), "] there is no group ", group, "; there are ",
                    groups_.size());
  for (const OptionRef& o : options_of(group))
    if (o.name == option_name) return o.get();
  fail("[", name(), "] there is no option '", option_name, "'");
}

void Optimizer::set_option(std::size_t group, std::string_view option_name, double value) {
  const double old = option(group, option_name);
  for (const OptionRef& o : options_of(group)) {
    if (o.name != option_name) continue;
    o.set(value);
    try {
      check_options(group);
    } catch (...) {
      o.set(old);
      throw;
    }
  }
}

bool Optimizer::has_option(std::string_view option_name) const {
  if (groups_.empty()) return false;
  const auto options = options_of(0);
  return std::any_of(options.begin(), options.end(),
                     [&](const OptionRef& o) { return o.name == option_name; });
}

void Optimizer::set_lr(double lr) {
  for (std::size_t g = 0; g < groups_.size(); ++g) set_lr(g, lr);
}
void Optimizer::set_lr(std::size_t group, double lr) { set_option(group, "lr", lr); }

// ---- stepping ----

void Optimizer::zero_grad(bool set_to_none) {
  for (const Group& g : groups_) nn::zero_gradients(g.params, set_to_none);
}

bool Optimizer::has_state(std::size_t group) const {
  for (std::size_t k = 0, count = state_names().size(); k < count; ++k)
    if (uses_state(group, k)) return true;
  return false;
}

bool Optimizer::has_state(std::size_t group, const Tensor& param) const {
  return (is_low(param.dtype()) && low_precision(group) != LowPrecision::none) || has_state(group);
}

// Compares only if someone wrote to the parameter since the last step.
void Optimizer::refresh_master(State& state, const Tensor& param) {
  if (state.written == param.storage().get() && state.version == param.storage()->version()) return;
  follow_parameter(state.master, param);
}

// Creates missing state tensors of a parameter. A new replica copies the state of replica 0, unless the
// replicas have parts of one parameter.
void Optimizer::prepare_state(std::size_t group, std::size_t index, int replica) {
  const Parameter& slot = groups_[group].params[index];
  const Tensor& param = nn::stored_tensor(slot, replica);
  std::vector<State>& states = groups_[group].states[index];
  const auto at = static_cast<std::size_t>(replica);
  if (states.size() <= at) states.resize(at + 1);
  State& state = states[at];
  if (!state.step.defined()) {
    tapestry::detail::refuse_in_capture(
        name(),
        "the optimizer would create its state in it, and every replay would reset the state; run the "
        "step once before the capture, or raise warm_up");
    if (replica > 0 && states[0].step.defined() && !slot.layout()) {
      state.step = clone(states[0].step);
      for (std::size_t k = 0; k < kMaxState; ++k)
        if (states[0].tensors[k].defined()) state.tensors[k] = clone(states[0].tensors[k]);
      if (states[0].master.defined()) state.master = clone(states[0].master);
    } else {
      state.step = number_name() ? tensor(std::vector<double>{0, 1}, {DType::f64, param.device()})
                                 : scalar_tensor(0.0, {DType::f64, param.device()});
    }
  }
  // The parameter may have moved since the last step.
  state.step = state.step.to(param.device());
  for (std::size_t k = 0, count = state_names().size(); k < count; ++k) {
    if (!uses_state(group, k)) continue;
    Tensor& t = state.tensors[k];
    check(
        !t.defined() || t.sizes() == param.sizes(), "[", name(), "] the state ", state_names()[k],
        " of a parameter has shape ", t.defined() ? t.sizes() : Shape{}, ", and the parameter ",
        param.sizes(),
        "; it was sharded or replaced after a step. Create the optimizer after the last change of the model");
    t = t.defined() ? t.to(param.device(), state_dtype(param.dtype())).contiguous(dense_format(param))
                    : full_like(param.detach().to(state_dtype(param.dtype())), initial_state(group));
    tag_memory(t, MemoryKind::optimizer);
  }
  if (!is_low(param.dtype()) || low_precision(group) != LowPrecision::master) {
    state.master = {};
    return;
  }
  if (state.master.defined() && state.master.sizes() == param.sizes()) {
    state.master = state.master.to(param.device()).contiguous(dense_format(param));
    refresh_master(state, param);
  } else {
    state.master = param.detach().to(DType::f32).contiguous(dense_format(param));
  }
  tag_memory(state.master, MemoryKind::optimizer);
}

// Adds missing entries to the lists of states and scalars. It runs only on the calling thread, before the
// workers start.
void Optimizer::prepare(const nn::ReplicaDevice& replica_device) {
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    Group& group = groups_[g];
    if (!replica_device.device.is_cpu() && !group.scalars_of(replica_device))
      group.scalars.push_back({replica_device.replica, replica_device.device});
    for (std::size_t i = 0; i < group.params.size(); ++i) {
      if (!replica_device.has(group.params[i])) continue;
      const Tensor& param = nn::stored_tensor(group.params[i], replica_device.replica);
      if (has_state(g, param) && param.grad().defined()) prepare_state(g, i, replica_device.replica);
    }
  }
}

Optimizer::DeviceScalars* Optimizer::Group::scalars_of(const nn::ReplicaDevice& replica_device) {
  for (DeviceScalars& s : scalars)
    if (s.replica == replica_device.replica && s.device == replica_device.device) return &s;
  return nullptr;
}

// Writes changed scalars to device memory and returns their address. The fill kernels take the values as
// arguments, so the host does not wait for the device.
const kernels::StepScalars* Optimizer::on_device(const kernels::StepScalars& scalars,
                                                 DeviceScalars& written) {
  const bool is_new = !written.memory.defined();
  if (is_new) {
    written.memory = empty({3}, {DType::f64, written.device});
    written.memory.narrow(0, 2, 1).fill_(kernels::StepScalars{}.momentum);
  }
  static_assert(sizeof(kernels::StepScalars) == 3 * sizeof(double));
  const auto write = [&](double& old, double value, std::int64_t index) {
    if (!is_new && old == value) return;
    old = value;
    written.memory.narrow(0, index, 1).fill_(value);
  };
  write(written.lr, scalars.lr, 0);
  write(written.grad_scale, scalars.grad_scale, 1);
  return static_cast<const kernels::StepScalars*>(written.memory.raw_data());
}

void Optimizer::update_tensors(std::size_t group, const nn::ReplicaDevice& replica_device,
                               const std::vector<Update>& updates) {
  struct Batch {
    DType dtype;
    std::vector<kernels::StepItem> items;
    std::vector<kernels::LowPrecisionItem> low = {};  // of f16 and bf16
  };
  static_assert(std::extent_v<decltype(kernels::StepItem::state)> == kMaxState);
  std::vector<Batch> batches;
  const std::size_t count = state_names().size();
  for (const Update& u : updates) {
    kernels::StepItem item{.param = u.param.raw_data(), .grad = u.grad.raw_data(), .numel = u.param.numel()};
    if (u.state) {
      item.step = static_cast<double*>(u.state->step.raw_data());
      for (std::size_t k = 0; k < count; ++k)
        if (uses_state(group, k)) item.state[k] = u.state->tensors[k].raw_data();
    }
    auto batch = std::find_if(batches.begin(), batches.end(),
                              [&](const Batch& b) { return b.dtype == u.param.dtype(); });
    if (batch == batches.end()) batch = batches.insert(batch, {u.param.dtype(), {}});
    batch->items.push_back(item);
    if (is_low(u.param.dtype()))
      batch->low.push_back(
          {.master = u.state && u.state->master.defined() ? u.state->master.data<float>() : nullptr,
           .number = static_cast<std::uint64_t>(u.number),
           .offset = u.offset});
  }
  const kernels::StepScalars scalars{.lr = lr(group), .grad_scale = grad_scale_};
  const auto own = [&](const Tensor& t) { return t.defined() ? t.to(replica_device.device) : t; };
  const Tensor loss_scale = own(loss_scale_), found_inf = own(found_inf_);
  const auto address = [](const Tensor& t) { return t.defined() ? t.data<float>() : nullptr; };
  const kernels::StepScalars* at = &scalars;
  DeviceScalars* const memory = groups_[group].scalars_of(replica_device);
  if (auto* const capture = tapestry::detail::current_capture())
    at = scalars_in_capture(
        *capture, name(), memory ? memory->memory : Tensor(), replica_device.device, number_name() != nullptr,
        [this, group] { return options_of(group); }, [this] { return grad_scale_; });
  else if (memory) at = on_device(scalars, *memory);
  for (const Batch& b : batches)
    update(group, replica_device.device, b.dtype,
           {.items = b.items.data(),
            .count = static_cast<std::int64_t>(b.items.size()),
            .scalars = at,
            .low = b.low.data(),
            .stochastic = low_precision(group) == LowPrecision::stochastic,
            .loss_scale = address(loss_scale),
            .found_inf = address(found_inf)});
}

// Updates the parameters of one ReplicaDevice. Several threads call this function at the same time, each for
// another ReplicaDevice.
void Optimizer::step_on(const nn::ReplicaDevice& replica_device) {
  const auto replica = static_cast<std::size_t>(replica_device.replica);
  const DeviceGuard guard(replica_device.device);
  std::int64_t number = 0;  // of the group's first parameter
  for (std::size_t g = 0; g < groups_.size();
       number += static_cast<std::int64_t>(groups_[g].params.size()), ++g) {
    Group& group = groups_[g];
    std::vector<Update> updates;
    for (std::size_t i = 0; i < group.params.size(); ++i) {
      if (!replica_device.has(group.params[i])) continue;
      const Tensor& param = nn::stored_tensor(group.params[i], replica_device.replica);
      Tensor grad = param.grad();
      if (!grad.defined()) continue;
      const MemoryFormat format = dense_format(param);
      check(param.is_contiguous(format), "[", name(), "] a parameter of shape ", param.sizes(),
            " and strides ", param.strides(), " is not dense; register it with contiguous()");
      if (!grad.is_contiguous(format)) grad = grad.contiguous(format);
      const auto offset = offset_of(group.params[i], replica_device.replica);
      if (!offset && low_precision(g) == LowPrecision::stochastic && is_low(param.dtype())) [[unlikely]]
        fail("[", name(), "] low_precision is stochastic, and a parameter of shape ",
             nn::whole_sizes(group.params[i]),
             nn::divided_text(*group.params[i].layout(), replica_device.replica),
             ", whose elements do not follow one another in the whole; choose LowPrecision::master");
      updates.push_back({param, std::move(grad), has_state(g, param) ? &group.states[i][replica] : nullptr,
                         number + static_cast<std::int64_t>(i), offset.value_or(0)});
    }
    if (updates.empty()) continue;
    const SpanScope span(replica_device.device, Activity::optimizer, name());
    const auto* const capture = tapestry::detail::current_capture();
    const std::size_t before = capture ? capture->before_replay.size() : 0;
    update_tensors(g, replica_device, updates);
    if (capture && capture->before_replay.size() == before)
      tapestry::detail::refuse_in_capture(
          name(), "this optimizer has no kernel that reads its options on the device; step outside");
    for (const Update& u : updates) {
      u.param.storage()->bump_version();
      if (!u.state || !u.state->master.defined()) continue;
      u.state->written = u.param.storage().get();
      u.state->version = u.param.storage()->version();
    }
  }
}

void Optimizer::step(const Tensor& loss_scale, const Tensor& found_inf) {
  check(supports_device_scaling(), "[", name(),
        "] this optimizer has no fused kernel that reads found_inf; call step() if found_inf is 0");
  for (const Tensor* t : {&loss_scale, &found_inf})
    check(
        (t == &loss_scale && !t->defined()) || (t->defined() && t->dtype() == DType::f32 && t->numel() == 1),
        "[", name(), "] loss_scale and found_inf must have one float32 element each");
  struct Reset {
    Optimizer& optimizer;
    ~Reset() { optimizer.loss_scale_ = optimizer.found_inf_ = {}; }
  } const reset{*this};
  loss_scale_ = loss_scale;
  found_inf_ = found_inf;
  step_all();
  ++steps_;
}

std::string Optimizer::describe(const std::string& of) const {
  std::string text;
  const auto line = [&](const std::string& what, double value) {
    text += concat({name(), of, " ", what, " ", value, "\n"});
  };
  line("steps", static_cast<double>(steps_));
  line("grad_scale", grad_scale_);
  for (std::size_t g = 0; g < groups_.size(); ++g)
    for (const OptionRef& o : options_of(g)) line(concat({"group ", g, " ", o.name}), o.get());
  return text;
}

void Optimizer::step_all() {
  const NoGradGuard no_grad;
  const std::function<void()>* called = nullptr;
  for (const Group& g : groups_)
    for (const Parameter& p : g.params)
      if (const auto& fn = p.before_step(); fn && fn.get() != called) {
        called = fn.get();  // all parameters of one DataParallel have the same function
        (*called)();
      }
  std::vector<nn::ReplicaDevice> replica_devices;
  for (const Group& g : groups_) nn::add_replica_devices(g.params, replica_devices);
  for (const nn::ReplicaDevice& replica_device : replica_devices) prepare(replica_device);
  nn::for_each_replica_device(replica_devices,
                              [this](const nn::ReplicaDevice& replica_device) { step_on(replica_device); });
  // All ranks have the same parameters in the same order, with or without gradients.
  for (const Group& g : groups_)
    for (const Parameter& p : g.params) nn::refresh_full(p);
}

}  // namespace tapestry::optim
