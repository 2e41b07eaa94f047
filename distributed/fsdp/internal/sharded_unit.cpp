#include "tapestry/distributed/fsdp/internal/sharded_unit.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <unordered_map>

#include "tapestry/autograd/engine.h"
#include "tapestry/autograd/internal/nested.h"
#include "tapestry/autograd/ops/creation.h"
#include "tapestry/autograd/ops/internal/upload.h"
#include "tapestry/autograd/ops/view.h"
#include "tapestry/core/error.h"
#include "tapestry/core/memory_record.h"
#include "tapestry/core/pinned.h"
#include "tapestry/core/timeline.h"
#include "tapestry/distributed/common/internal/division.h"
#include "tapestry/distributed/common/internal/same_model.h"
#include "tapestry/distributed/fsdp/internal/sharded_model.h"

namespace tapestry::distributed {
namespace {

// The units of all modules in this process.
struct Registry {
  std::mutex mutex;
  std::unordered_map<const nn::Module*, std::weak_ptr<ShardedUnit>> units;
};
Registry& registry() {
  static Registry& all = *new Registry;  // never destroyed: modules may be static
  return all;
}

// Makes the host wait for copies between it and the GPU.
void wait_for_copy(const Event& done, const char* to) {
  constexpr Milliseconds kTimeout(300'000);
  check<TimeoutError>(done.wait_for(kTimeout), "[fully_shard] copies to ", to,
                      " have not completed within 300 s; the GPU does not make progress");
}

double seconds(Clock::duration d) { return std::chrono::duration<double>(d).count(); }

}  // namespace

ShardedUnit::ShardedUnit(nn::Module& module, const FsdpOptions& options_, const Groups& groups)
    : options(options_), module_(&module), groups_(groups), states_(groups.size()) {}

ShardedUnit::~ShardedUnit() {
  for (std::size_t r = 0; r < states_.size(); ++r) drop_gather(static_cast<int>(r));
  if (model_) model_->remove(*this);
  for (const Member& m : members_) {
    if (m.parameter->unit == this) m.parameter->unit = nullptr;
  }
}

std::shared_ptr<ShardedUnit> ShardedUnit::of(const nn::Module& module) {
  Registry& all = registry();
  const std::lock_guard lock(all.mutex);
  const auto found = all.units.find(&module);
  return found == all.units.end() ? nullptr : found->second.lock();
}

void ShardedUnit::enlist() {
  Registry& all = registry();
  const std::lock_guard lock(all.mutex);
  all.units[module_] = weak_from_this();
}

void ShardedUnit::forget_module() {
  Registry& all = registry();
  const std::lock_guard lock(all.mutex);
  all.units.erase(module_);
  module_ = nullptr;
  for (const Member& m : members_) m.parameter->unit = nullptr;
}

std::string ShardedUnit::label() const {
  if (!module_) return "(destroyed)";
  const std::string path = module_->path();
  return path.empty() ? module_->type_name() : path;
}

std::string ShardedUnit::path_of(const std::string& name) const {
  const std::string path = module_ ? module_->path() : "";
  return path.empty() ? name : path + "." + name;
}

void ShardedUnit::add(const std::string& name, const nn::Parameter& slot,
                      const std::vector<Device>& devices) {
  auto parameter = std::make_shared<ShardedParameter>(name, slot, groups_, devices, options.offload);
  parameter->unit = this;
  nn::Parameter handle = slot;
  if (!devices.empty()) handle.set_replicas(std::vector<Tensor>(devices.size(), slot.replica(0)));
  handle.set_layout(parameter);
  for (std::size_t r = 0; r < groups_.size(); ++r) parameter->prepare(static_cast<int>(r));
  members_.push_back({handle, std::move(parameter)});
}

void ShardedUnit::take_from(ShardedUnit& other, const nn::Parameter& slot, const std::string& name) {
  const auto found = std::find_if(other.members_.begin(), other.members_.end(),
                                  [&](const Member& m) { return m.slot.is_same(slot); });
  found->parameter->unit = this;
  found->parameter->name = name;
  members_.push_back(*found);
  other.members_.erase(found);
}

void ShardedUnit::set_groups(const Groups& groups) {
  // What is on the way in the old groups will not arrive.
  for (std::size_t r = 0; r < states_.size(); ++r) drop_gather(static_cast<int>(r));
  groups_ = groups;
  for (const Member& m : members_) m.parameter->set_groups(groups);
}

bool ShardedUnit::is_computing() const { return model_ && model_->is_computing(); }
void ShardedUnit::refill(int replica) { model_->request(*this, replica); }
void ShardedUnit::on_gradient(int replica, ShardedParameter& parameter) {
  if (grad_enabled()) [[unlikely]]
    fail<AutogradError>("[fully_shard] the gradient of ", parameter.path(),
                        " arrived in a backward pass with create_graph, but sums over the ranks have no "
                        "gradients; use autograd::grad() with create_graph inside the loss, and backward() "
                        "without it for the loss");
  model_->on_gradient(*this, replica);
}

bool ShardedUnit::is_trained(int replica) const {
  return std::any_of(members_.begin(), members_.end(),
                     [&](const Member& m) { return m.parameter->is_trained(replica); });
}

void ShardedUnit::check_current(int replica) const {
  for (const Member& m : members_)
    check(!m.parameter->is_stale(replica), "[fully_shard] ", m.parameter->path(),
          " was changed while keep_full() kept the values that were gathered before; change parameters and "
          "step optimizers after end_step()");
}

int ShardedUnit::count_reached(int replica) const {
  return static_cast<int>(std::count_if(members_.begin(), members_.end(), [&](const Member& m) {
    return m.parameter->is_trained(replica) && autograd::backward_reaches(m.parameter->full(replica));
  }));
}

Device ShardedUnit::device(int replica) const {
  return members_.empty() ? kCPU : members_[0].parameter->device(replica);
}

// The text names the parameters too, because it appears in the diagnosis of a collective that fails.
std::string ShardedUnit::collective_name(const char* what) const {
  std::vector<std::string> names;
  for (const Member& m : members_) names.push_back(m.parameter->name);
  return concat({"fsdp ", label(), " ", what, " (", listed(names, 2), ")"});
}

void ShardedUnit::add_user(int replica) {
  if (at(replica).users++ > 0) return;
  for (Member& m : members_) m.slot.set_full(replica, m.parameter->full(replica));
}

void ShardedUnit::remove_user(int replica) {
  if (--at(replica).users > 0) return;
  for (Member& m : members_) {
    m.slot.set_full(replica, {});
    if (at(replica).full) m.parameter->keep_own_changes(replica);
  }
}

// ---- gather ----

void ShardedUnit::post_gather(int replica) {
  State& s = at(replica);
  if (s.arriving || members_.empty()) return;
  const NoGradGuard no_grad;
  if (s.full) release(replica);
  std::vector<Tensor> outputs, inputs;
  try {
    const OffloadStreams* const streams =
        is_offloaded(replica) ? &model_->offload_streams(replica, device(replica)) : nullptr;
    for (const Member& m : members_) {
      m.parameter->prepare(replica);
      inputs.push_back(streams ? m.parameter->upload(replica, streams->to_gpu)
                               : m.parameter->gather_input(replica));
      outputs.push_back(m.parameter->acquire(replica));
    }
    std::optional<StreamGuard> guard;
    if (streams) {
      // The gather waits for the copies and for what computes now, because its outputs may reuse memory. What
      // computes does not wait for the copies.
      s.upload_done.record(streams->to_gpu);
      s.uploaded = inputs;
      Event before;
      before.record(current_stream(device(replica)));
      streams->gather.wait(before);
      streams->gather.wait(s.upload_done);
      guard.emplace(streams->gather);
    }
    s.gather = group(replica).all_gather(outputs, inputs, collective_name("all_gather"));
  } catch (...) {
    outputs.clear();
    s.uploaded.clear();
    for (const Member& m : members_) m.parameter->discard(replica);
    throw;
  }
  s.arriving = true;
  ++s.report.gathers;
  if (autograd::pass_position().id != 0) ++s.report.backward_gathers;
}

// After the current stream has waited for the gather: the host may change the shards, and the copies on the
// GPU may be freed.
void ShardedUnit::await_upload(int replica) {
  State& s = at(replica);
  if (s.uploaded.empty()) return;
  wait_for_copy(s.upload_done, "the GPU");
  for (const Tensor& t : s.uploaded) record_stream(t, current_stream(t.device()));
  s.uploaded.clear();
}

// Waits, and records the wait and the time of the transport, which moves `bytes` over `over`.
void ShardedUnit::wait_for(int replica, const Work& work, const char* what, std::int64_t bytes,
                           const ProcessGroup& over, double& transport_s, double& exposed_s) const {
  const Clock::time_point began = Clock::now();
  work.wait();
  const Clock::time_point ended = Clock::now();
  exposed_s += seconds(ended - began);
  transport_s += seconds(work.finished() - work.started());
  if (!Timeline::active() || !device(replica).is_cpu()) return;
  const std::string row = device(replica).str();
  const SpanSubject subject{
      .module = module_ ? module_->path() : std::string(), .bytes = bytes, .axis = over.name()};
  add_span(row + " communication", Activity::communication, collective_name(what), work.started(),
           work.finished(), subject);
  add_span(row, Activity::communication, concat({"wait for fsdp ", label(), " ", what}), began, ended,
           subject);
}

void ShardedUnit::finish_gather(int replica) {
  State& s = at(replica);
  if (!s.arriving) return;
  wait_for(replica, s.gather, "all_gather", full_bytes(replica), group(replica), s.report.gather_s,
           s.report.exposed_s);
  await_upload(replica);
  s.arriving = false;
  s.full = true;
  s.gather = {};
}

void ShardedUnit::drop_gather(int replica) noexcept {
  State& s = at(replica);
  if (!s.arriving) return;
  bool arrived = false;  // on a GPU in the order of its stream, also if done() is false
  try {
    s.gather.wait();
    await_upload(replica);
    arrived = true;
  } catch (const std::exception&) {  // the group has failed, and its next call reports it
  }
  // A transport that is stuck may still write. Then the memory stays.
  if (!arrived && !s.gather.done()) return;
  s.arriving = false;
  s.gather = {};
  for (const Member& m : members_) m.parameter->discard(replica);
}

void ShardedUnit::release(int replica) {
  State& s = at(replica);
  if (!s.full) return;
  s.full = false;
  for (const Member& m : members_) m.parameter->release(replica);
}

// ---- reduce-scatter and all-reduce ----

// Tensors for this rank's parts of the reduced inputs. If `buffers` is not null, those of one dtype lie in
// one of its tensors, which an all-reduce can sum at once, each at a multiple of 64 bytes.
std::vector<Tensor> ShardedUnit::outputs_for(const std::vector<Tensor>& inputs, int replica,
                                             std::vector<Tensor>* buffers) const {
  constexpr std::size_t kAlignment = 64;
  std::vector<Tensor> outputs;
  std::map<DType, std::int64_t> elements;
  std::vector<std::int64_t> begins;
  for (const Tensor& input : inputs) {
    const std::int64_t numel = input.numel() / group(replica).size();
    if (!buffers) {
      outputs.push_back(empty({numel}, {input.dtype(), input.device()}));
      tag_memory(outputs.back(), MemoryKind::gradients);
      continue;
    }
    const auto unit = static_cast<std::int64_t>(kAlignment / dtype_size(input.dtype()));
    begins.push_back(elements[input.dtype()]);
    elements[input.dtype()] += (numel + unit - 1) / unit * unit;
  }
  if (!buffers) return outputs;
  std::map<DType, Tensor> memory;
  for (const auto& [dtype, count] : elements) {
    buffers->push_back(zeros({count}, {dtype, inputs[0].device()}));
    tag_memory(buffers->back(), MemoryKind::gradients);
    memory[dtype] = buffers->back();
  }
  for (std::size_t i = 0; i < inputs.size(); ++i)
    outputs.push_back(
        part_of(memory.at(inputs[i].dtype()), begins[i], {inputs[i].numel() / group(replica).size()}, {1}));
  return outputs;
}

// Adds what passes under no_all_reduce() have left to this rank's own rows of the gradient. So the
// reduce-scatter counts it once. The gradient may share memory with another one, and is copied.
void ShardedUnit::add_partial(int replica, std::size_t member, Tensor& gradient) {
  State& s = at(replica);
  const Tensor partial = std::exchange(s.partial[member], {});
  gradient = gradient.clone();
  gradient.narrow(0, group(replica).rank() * partial.numel(), partial.numel())
      .add_(partial.to(gradient.dtype()));
}

// All ranks take part with the same parameters. A parameter that a rank did not use counts as zeros there,
// and flags tell whether any rank used it.
void ShardedUnit::post_scatter(int replica, bool all_reduce) {
  finish_all_reduce(replica);
  land(replica);
  State& s = at(replica);
  ProcessGroup* const copies = options.replicate_group.get();
  s.complete = all_reduce || !copies;
  const NoGradGuard no_grad;
  s.reduced_members.clear();
  s.used.clear();
  s.partial.resize(members_.size());
  std::vector<Tensor> inputs;
  for (std::size_t i = 0; i < members_.size(); ++i) {
    ShardedParameter& p = *members_[i].parameter;
    if (!p.is_trained(replica)) {
      p.drop_gradient(replica);
      s.partial[i] = {};
      continue;
    }
    s.reduced_members.push_back(i);
    s.used.push_back(p.has_gradient(replica) || s.partial[i].defined());
    inputs.push_back(p.take_gradient(replica));
    if (s.complete && s.partial[i].defined()) add_partial(replica, i, inputs.back());
  }
  s.unreduced = false;
  s.has_partial = !s.complete;
  if (s.reduced_members.empty()) return;
  const auto count = static_cast<std::int64_t>(s.used.size());
  const Tensor own = empty({group(replica).size() * count}, {DType::f32, kCPU});
  for (std::int64_t i = 0; i < own.numel(); ++i)
    own.data<float>()[i] = s.used[static_cast<std::size_t>(i % count)] ? 1.0f : 0.0f;
  // In the dtype of a gradient, so that an all-reduce needs no message for the flags alone.
  inputs.push_back(autograd::uploaded(own.to(inputs[0].dtype()), device(replica)));
  std::vector<Tensor> buffers;
  std::vector<Tensor> outputs = outputs_for(inputs, replica, copies && s.complete ? &buffers : nullptr);
  s.flags = outputs.back();
  s.scattering = true;
  // Sums of several passes of one copy are divided once, by the pass that all-reduces them.
  const ReduceOp op = s.complete ? options.reduce : ReduceOp::sum;
  s.scatter = group(replica).reduce_scatter(outputs, inputs, op, collective_name("reduce_scatter"));
  outputs.pop_back();
  s.reduced = std::move(outputs);
  ++s.report.scatters;
  s.buffer_bytes.clear();
  for (const Tensor& buffer : buffers) {
    s.all_reduces.push_back(copies->all_reduce(buffer, op, after(s.scatter, collective_name("all_reduce"))));
    s.buffer_bytes.push_back(static_cast<std::int64_t>(buffer.nbytes()));
    s.report.all_reduced_bytes += s.buffer_bytes.back();
  }
  s.report.all_reduces += buffers.empty() ? 0 : 1;
}

void ShardedUnit::set_unreduced(int replica) {
  at(replica).unreduced = true;
  for (const Member& m : members_) m.parameter->keep_unreduced(replica);
}

void ShardedUnit::finish_scatter(int replica) {
  State& s = at(replica);
  if (!s.scattering) return;
  // The current stream waits, because it frees what was reduced.
  wait_for(replica, s.scatter, "reduce_scatter", full_bytes(replica), group(replica), s.report.scatter_s,
           s.report.exposed_s);
  s.scattering = false;
  const Work scatter = std::exchange(s.scatter, {});
  if (!is_summing(replica)) take_reduced(replica, {scatter});
}

void ShardedUnit::finish_all_reduce(int replica) {
  State& s = at(replica);
  if (!is_summing(replica)) return;
  for (std::size_t i = 0; i < s.all_reduces.size(); ++i)
    wait_for(replica, s.all_reduces[i], "all_reduce", s.buffer_bytes[i], *options.replicate_group,
             s.report.all_reduce_s, s.report.all_reduce_exposed_s);
  take_reduced(replica, std::exchange(s.all_reduces, {}));
}

// `works` are those that gave the sums, for which the current stream has waited.
void ShardedUnit::take_reduced(int replica, const std::vector<Work>& works) {
  State& s = at(replica);
  std::vector<Tensor> reduced = std::move(s.reduced);
  s.reduced.clear();
  if (!s.complete) {
    const NoGradGuard no_grad;
    Tensor flags;
    for (std::size_t i = 0; i < reduced.size(); ++i) {
      Tensor& sum = s.partial[s.reduced_members[i]];
      if (!is_used_anywhere(s, i, flags)) continue;
      if (sum.defined()) sum.add_(reduced[i].to(sum.dtype()));
      else sum = reduced[i];
    }
    s.flags = {};
    return;
  }
  if (!is_offloaded(replica)) return deliver(replica, std::move(reduced));
  const Stream& to_host = model_->offload_streams(replica, device(replica)).to_host;
  {
    const StreamGuard guard(to_host);
    for (const Work& work : works) work.wait();
  }
  for (const Tensor& t : reduced) {
    s.landing.push_back(empty_pinned(t.sizes(), t.dtype()));
    if (t.numel() > 0) copy_async(s.landing.back(), t, to_host);
  }
  s.landed.record(to_host);
}

void ShardedUnit::land(int replica) {
  State& s = at(replica);
  if (s.landing.empty()) return;
  wait_for_copy(s.landed, "the host");
  deliver(replica, std::exchange(s.landing, {}));
}

// True if a rank used the parameter. Reads the `flags` only if needed, because that waits for a GPU.
bool ShardedUnit::is_used_anywhere(const State& s, std::size_t i, Tensor& flags) const {
  if (s.used[i]) return true;
  if (!flags.defined()) flags = s.flags.to(kCPU).to(DType::f32);
  return flags.data<float>()[i] > 0;
}

void ShardedUnit::deliver(int replica, std::vector<Tensor> reduced) {
  State& s = at(replica);
  Tensor flags;
  for (std::size_t i = 0; i < reduced.size(); ++i)
    if (is_used_anywhere(s, i, flags))  // otherwise its gradient stays
      members_[s.reduced_members[i]].parameter->deliver(replica, std::move(reduced[i]));
  s.flags = {};  // they may keep the buffer of the gradients, which zero_grad() is to free
}

void ShardedUnit::drop_gradients(int replica) noexcept {
  State& s = at(replica);
  s.scattering = s.unreduced = s.has_partial = false;
  s.scatter = {};
  s.all_reduces.clear();
  s.partial.clear();
  s.reduced.clear();
  s.landing.clear();
  for (const Member& m : members_) m.parameter->drop_gradient(replica);
}

// ---- report ----

std::int64_t ShardedUnit::full_bytes(int replica) const {
  std::size_t bytes = 0;
  for (const Member& m : members_) bytes += m.parameter->full_bytes(replica);
  return static_cast<std::int64_t>(bytes);
}

FsdpUnitReport ShardedUnit::report(int replica) const {
  FsdpUnitReport r = at(replica).report;
  r.name = label();
  r.full_bytes = static_cast<std::size_t>(full_bytes(replica));
  for (const Member& m : members_) {
    r.parameters.push_back(m.parameter->name);
    r.shard_bytes += m.parameter->shard_bytes(replica);
  }
  r.reshards_after_forward = reshards;
  r.is_full = is_full(replica);
  return r;
}

void ShardedUnit::reset_report() {
  for (State& s : states_) s.report = {};
}

}  // namespace tapestry::distributed
