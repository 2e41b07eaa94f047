#include "tapestry/distributed/data_parallel/internal/replicas.h"

#include <algorithm>
#include <atomic>
#include <utility>

#include "tapestry/autograd/engine.h"
#include "tapestry/autograd/internal/nested.h"
#include "tapestry/core/error.h"
#include "tapestry/core/internal/worker.h"
#include "tapestry/distributed/common/seeds.h"
#include "tapestry/nn/internal/undivided.h"

namespace tapestry::distributed {
namespace {

// A loss is divided before backward (ReplicaGraphs::seed()), so gradients are sums.
ReducerOptions reducer_options(const DataParallelOptions& options) {
  ReducerOptions reducer = bucket_sizes("DataParallel", options.bucket_cap_mb, options.first_bucket_mb);
  reducer.reduce = ReduceOp::sum;
  return reducer;
}

constexpr std::int64_t kReplaced = INT64_MAX;  // changes of a gradient that is another tensor now

}  // namespace

void check_equal(const char* op, const std::string& what, std::span<const Device> devices,
                 const std::vector<Tensor>& replicas) {
  std::string text;
  on_replicas(devices.first(1), [&](int) {
    const NoGradGuard no_grad;
    for (std::size_t r = 1; r < replicas.size() && text.empty(); ++r) {
      const Tensor &first = replicas[0], &other = replicas[r];
      const bool both = first.defined() && other.defined();
      if (both ? other.detach().to(first.device()).equal(first.detach()) : first.defined() == other.defined())
        continue;
      text = concat({what, " on ", devices[r], " differs from that on ", devices[0]});
      if (!both) {
        text += concat({": the one on ", other.defined() ? devices[0] : devices[r], " is undefined"});
        continue;
      }
      const Tensor a = first.detach().to(kCPU, DType::f64), b = other.detach().to(kCPU, DType::f64);
      if (a.allclose(b, 0, 0, true)) text.clear();
      else text += concat({" by up to ", (a.sub(b).abs().max)().item()});
    }
  });
  check(text.empty(), "[", op, "] ", text,
        "; change the first replica alone, which is copied to the others, or all of them in the same way");
}

void Replicas::Slot::record() {
  replicas.clear();
  versions.clear();
  for (int r = 0; r < slot.replicas(); ++r) {
    replicas.push_back(slot.replica(r));
    versions.push_back(replicas.back().version());
  }
}

bool Replicas::Slot::holds_recorded(std::size_t size) const {
  if (replicas.size() != size || slot.replicas() != static_cast<int>(size)) return false;
  for (std::size_t r = 0; r < size; ++r)
    if (!slot.replica(static_cast<int>(r)).is_same(replicas[r])) return false;
  return true;
}

// True if the replicas still have equal values, according to their version counters. Optimizers change all
// replicas of a parameter in the same way, so equal numbers of changes are allowed. Forward changes each
// replica of a buffer differently, so no change is allowed.
bool Replicas::Slot::replicas_agree() const {
  const std::uint32_t allowed = is_parameter ? changes(0) : 0;
  for (std::size_t r = 0; r < replicas.size(); ++r)
    if (changes(r) != allowed) return false;
  return true;
}

std::int64_t Replicas::Slot::gradient_changes(std::size_t r) const {
  const Tensor now = replicas[r].grad(), then = gradients.empty() ? Tensor() : gradients[r];
  if (!now.defined() && !then.defined()) return 0;
  if (!now.defined() || !then.defined() || !now.is_same(then)) return kReplaced;
  return now.version() - gradient_versions[r];
}

bool Replicas::Slot::gradients_agree() const {
  const Tensor first = replicas[0].grad();
  if (!first.defined())
    return std::none_of(replicas.begin(), replicas.end(), [](const Tensor& t) { return t.grad().defined(); });
  for (std::size_t r = 0; r < replicas.size(); ++r) {
    const Tensor own = replicas[r].grad();
    if (gradients.empty() || !own.defined() || !own.is_same(gradients[r])) return false;
    if (own.version() - gradient_versions[r] != first.version() - gradient_versions[0]) return false;
  }
  return true;
}

Replicas::Replicas(SomeSlots, const char* op_, nn::Module& model, std::vector<Device> on,
                   const DataParallelOptions& o)
    : op(op_), devices(std::move(on)), options(o), model_(model), all_slots_(false) {
  check(options.backend.empty() || options.backend == "nccl" || options.backend == "local", "[", op,
        "] backend \"", options.backend, "\"; it is nccl, local or empty");
  generators_.resize(size());
  for (std::size_t r = 1; r < size(); ++r) generators_[r] = std::make_unique<Generator>();
}

Replicas::Replicas(nn::Module& model, std::vector<Device> on, const DataParallelOptions& o)
    : op("DataParallel"), devices(std::move(on)), options(o), model_(model), all_slots_(true) {
  reducer_options(options);
  check(options.backend.empty() || options.backend == "nccl" || options.backend == "local",
        "[DataParallel] backend \"", options.backend, "\"; it is nccl, local or empty");
  const std::string why = size() > 1 ? nn::why_not_divided(model) : std::string();
  check(why.empty(), "[DataParallel] ", why);
  for (const auto& [name, p] : model.named_parameters()) slots_.push_back({name, p, true});
  for (const auto& [name, b] : model.named_buffers()) slots_.push_back({name, b, false});
  for (const Slot& s : slots_) {
    check(!s.slot.layout(), "[DataParallel] '", s.name,
          "' is sharded, and its ranks or devices have parts of it already; use the sharded model itself");
    check(s.slot.replicas() == 1, "[DataParallel] '", s.name, "' has ", s.slot.replicas(),
          " replicas already; destroy the other DataParallel of this model first, or call unreplicate()");
    check<DeviceError>(s.slot.replica(0).device() == slots_[0].slot.replica(0).device(),
                       "[DataParallel] the model is on several devices: ", slots_[0].name, " on ",
                       slots_[0].slot.replica(0).device(), ", ", s.name, " on ", s.slot.replica(0).device(),
                       "; a replica must be on one device. Use DistributedDataParallel for such a model");
  }
  generators_.resize(size());
  for (std::size_t r = 1; r < size(); ++r) generators_[r] = std::make_unique<Generator>();
  if (are_persistent()) {
    replicate_all();
  } else {
    unreplicate(model);
    model.to(devices[0]);
  }
}

Replicas::~Replicas() { Replicas::drop_group(); }

void Replicas::note_broadcast(const Slot& slot) {
  bytes_broadcast_ +=
      static_cast<std::int64_t>(slot.slot.replica(0).nbytes()) * static_cast<std::int64_t>(size() - 1);
}

void Replicas::replicate_all() {
  for (const Slot& s : slots_)
    check(!has_reducer(s.slot.replica(0)), "[DataParallel] '", s.name,
          "' belongs to a DistributedDataParallel, which would average the first replica's gradient only; "
          "use DistributedDataParallel alone, with one rank per device");
  if (all_slots_) {
    replicate(model_, devices);
  } else {
    std::vector<nn::TensorSlot> slots;
    for (const Slot& s : slots_) slots.push_back(s.slot);
    replicate_slots(slots, devices);
  }
  for (Slot& s : slots_) {
    s.record();
    note_broadcast(s);
    if (are_persistent() && s.is_parameter) s.slot.set_before_step(before_step_);
  }
  watch_gradients();
}

void Replicas::watch_gradients() {
  if (!are_persistent()) return;
  for (Slot& s : slots_) {
    const Tensor& first = s.replicas[0];
    if (!s.is_trained() || (s.watched.defined() && s.watched.is_same(first))) continue;
    s.hook.remove();
    s.watched = first;
    s.hook = first.register_post_accumulate_grad_hook([this](const Tensor&) { on_gradient(); });
  }
}

void Replicas::on_gradient() {
  if (in_pass_ || device_worker(devices[0]).is_current()) return;
  const std::uint64_t pass = autograd::current_backward().id;
  if (!autograd::pass_position().accumulates || std::exchange(outside_pass_, pass) == pass) return;
  autograd::on_backward_end([this] {
    broadcast_gradients();
    record_gradients();
  });
}

void Replicas::synchronize() {
  if (!are_persistent()) return replicate_all();
  if (std::all_of(slots_.begin(), slots_.end(), [&](const Slot& s) { return s.holds_recorded(size()); }))
    return refresh();
  reducers_.clear();
  replicate_all();
}

// Copies what the user changed from the first replica to the others.
void Replicas::refresh() {
  std::vector<Slot*> changed;
  for (Slot& s : slots_) {
    for (std::size_t r = 1; s.is_parameter && r < size(); ++r)
      if (s.replicas[r].requires_grad() != s.is_trained()) s.replicas[r].set_requires_grad(s.is_trained());
    if (s.replicas_agree()) continue;
    for (std::size_t r = 1; s.is_parameter && r < size(); ++r)
      if (s.changes(r) > s.changes(0)) check_equal(op, s.name, devices, s.replicas);
    changed.push_back(&s);
  }
  watch_gradients();
  if (changed.empty()) return;
  on_replicas(devices, [&](int r) {
    const NoGradGuard no_grad;
    for (const Slot* s : changed)
      if (r > 0) s->replicas[static_cast<std::size_t>(r)].detach().copy_(s->replicas[0].detach());
  });
  for (Slot* s : changed) {
    s->record();
    note_broadcast(*s);
  }
}

std::vector<std::vector<Tensor>> Replicas::detach_replicas() {
  std::vector<std::vector<Tensor>> tensors(size());
  for (Slot& s : slots_) {
    for (std::size_t r = 0; r < size(); ++r) tensors[r].push_back(s.replicas[r]);
    s.replicas.clear();
  }
  drop_replicas();
  return tensors;
}

void Replicas::attach_replicas(const std::vector<std::vector<Tensor>>& tensors) {
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    std::vector<Tensor> all{slots_[i].slot.replica(0)};
    for (std::size_t r = 1; r < size(); ++r) all.push_back(tensors[r][i]);
    slots_[i].slot.set_replicas(std::move(all));
  }
}

// The seeds are a function of the first replica's generator. So a resumed run draws the same numbers as an
// uninterrupted one.
void Replicas::seed_generators() {
  const auto [seed, offset] = current_generator(devices[0]).state();
  for (std::size_t r = 1; r < size(); ++r)
    generators_[r]->set_state({rank_seed(seed, static_cast<int>(r)), offset});
}

const std::vector<std::unique_ptr<Reducer>>& Replicas::reducers() {
  check<AutogradError>(
      !closed_,
      "[DataParallel] backward ran after the DataParallel of its forward pass was destroyed; keep the "
      "DataParallel until backward has run");
  std::vector<bool> trained;
  for (const Slot& s : slots_) trained.push_back(s.is_trained());
  if (!reducers_.empty() && trained == reduced_) return reducers_;
  reducers_.clear();
  if (std::find(trained.begin(), trained.end(), true) == trained.end()) return reducers_;
  // The calls of the ranks need not be compared, because one object makes the calls of all ranks.
  if (groups_.empty()) groups_ = make_replica_groups(devices, options.backend, {.check = false});
  std::vector<std::unique_ptr<Reducer>> made(size());
  on_replicas(devices, [&](int i) {
    const auto r = static_cast<std::size_t>(i);
    std::vector<std::pair<std::string, Tensor>> parameters;
    for (std::size_t s = 0; s < slots_.size(); ++s)
      if (trained[s]) parameters.emplace_back(slots_[s].name, slots_[s].replicas[r]);
    made[r] = std::make_unique<Reducer>(std::move(parameters), groups_[r], reducer_options(options));
    *made[r]->synchronize = false;  // ReplicaGraphs switches it on for its own passes
  });
  reducers_ = std::move(made);
  reduced_ = std::move(trained);
  return reducers_;
}

void Replicas::leave_gradients_to_first() {
  for (Slot& s : slots_) {
    s.gradients.clear();  // they are views of buckets that the pass may free
    for (std::size_t r = 1; s.is_trained() && r < size(); ++r) s.replicas[r].set_grad({});
  }
}

// Copies the first replica's gradients to the others if something else than a pass of all changed them.
void Replicas::broadcast_gradients() {
  std::vector<const Slot*> changed;
  for (Slot& s : slots_)
    if (s.is_trained() && !s.gradients_agree()) changed.push_back(&s);
  copy_gradients(changed);
}

void Replicas::copy_gradients(const std::vector<const Slot*>& slots) {
  if (slots.empty()) return;
  on_replicas(devices, [&](int i) {
    const NoGradGuard no_grad;
    const auto r = static_cast<std::size_t>(i);
    for (const Slot* s : slots) {
      const Tensor first = s->replicas[0].grad();
      if (r == 0) continue;
      const Tensor own = s->replicas[r].grad();
      if (first.defined() && own.defined()) own.copy_(first);
      else s->replicas[r].set_grad(first.defined() ? first.to(devices[r]) : first);
    }
  });
}

// Code between backward() and step() may have changed the gradients of the first replica alone. A change of
// another replica alone would be lost, so it is an error.
void Replicas::before_step() {
  std::vector<const Slot*> changed;
  bool agree = true;
  for (const Slot& s : slots_) {
    if (!s.is_trained() || !s.holds_recorded(size()) || s.gradients_agree()) continue;
    agree = false;
    const std::int64_t first = s.gradient_changes(0);
    bool only_first = true;
    for (std::size_t r = 1; r < size(); ++r)
      only_first = only_first &&
                   (s.gradient_changes(r) < first || (s.gradient_changes(r) == first && first != kReplaced));
    if (only_first) changed.push_back(&s);
    else check_equal(op, "the gradient of " + s.name, devices, s.current_gradients());
  }
  copy_gradients(changed);
  if (!agree) record_gradients();
}

std::vector<Tensor> Replicas::Slot::current_gradients() const {
  std::vector<Tensor> all;
  for (const Tensor& t : replicas) all.push_back(t.grad());
  return all;
}

void Replicas::record_gradients() {
  for (Slot& s : slots_) {
    s.gradients.clear();
    s.gradient_versions.clear();
    if (!s.is_trained()) continue;
    s.gradients = s.current_gradients();
    for (const Tensor& t : s.gradients) s.gradient_versions.push_back(t.defined() ? t.version() : 0);
  }
}

void Replicas::compare_once() {
  if (compared_) return;
  for (const Slot& s : slots_)
    if (s.is_parameter && s.replicas_agree()) check_equal(op, s.name, devices, s.replicas);
  compared_ = true;
}

void Replicas::run(std::size_t count, bool collective, const std::function<void(int)>& task) {
  struct RunScope {
    Replicas& replicas;
    ~RunScope() { replicas.end_run(); }
  };
  begin_run();
  const RunScope scope{*this};
  if (!collective) return on_replicas(first(count), task);
  std::atomic<bool> failed{false};
  const auto is_first_failure = [&](int r, const char* why) {
    if (failed.exchange(true)) return false;
    abort(r, why);
    return true;
  };
  try {
    on_replicas(first(count), [&](int r) {
      try {
        task(r);
        end_task(r);
      } catch (const std::exception& e) {
        if (is_first_failure(r, e.what())) throw;
      } catch (...) {
        if (is_first_failure(r, "an exception that is not a std::exception")) throw;
      }
    });
  } catch (...) {
    drop_group();
    throw;
  }
}

void Replicas::abort(int replica, const std::string& why) noexcept {
  groups_[static_cast<std::size_t>(replica)]->abort(why);
}

void Replicas::drop_group() noexcept {
  reducers_.clear();
  groups_.clear();
}

void Replicas::close() noexcept {
  closed_ = true;
  for (Slot& s : slots_) {
    s.hook.remove();
    // After unreplicate(), another DataParallel may have the slot.
    if (s.slot.before_step() == before_step_) s.slot.set_before_step({});
  }
  drop_group();
  drop_replicas();
}

void Replicas::drop_replicas() noexcept {
  for (Slot& s : slots_)
    if (s.slot.replicas() > 1) s.slot.set_replicas({s.slot.replica(0)});
}

}  // namespace tapestry::distributed
