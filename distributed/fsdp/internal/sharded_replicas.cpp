#include "tapestry/distributed/fsdp/internal/sharded_replicas.h"

#include <algorithm>

#include "tapestry/core/error.h"
#include "tapestry/distributed/fsdp/internal/shard_module.h"
#include "tapestry/distributed/fsdp/internal/sharded_model.h"

namespace tapestry::distributed {
namespace {

constexpr const char* kReplicasOp = "ShardedDataParallel";
constexpr const char* kNotCallable =
    "[ShardedDataParallel] a module of the sharded model was called by itself, but the other devices have "
    "parts "
    "of its parameters; call the ShardedDataParallel or its loss(), which run all devices";

// The modules of `list` that are inside `module`, descendants first.
void add_inner_first(nn::Module& module, const std::vector<nn::Module*>& list, std::vector<nn::Module*>& to) {
  for (nn::Module* child : module.children()) {
    add_inner_first(*child, list, to);
    if (std::find(list.begin(), list.end(), child) != list.end() &&
        std::find(to.begin(), to.end(), child) == to.end())
      to.push_back(child);
  }
}

}  // namespace

ShardedReplicas::ShardedReplicas(nn::Module& model, std::vector<Device> on,
                                 const ShardedDataParallelOptions& o)
    : Replicas(SomeSlots{}, kReplicasOp, model, std::move(on), {.backend = o.backend}) {
  check_replica_devices(kReplicasOp, devices);
  const std::vector<nn::Module*> all = model.modules();
  for (const nn::Module* unit : o.units) {
    check(unit != nullptr, "[", kReplicasOp, "] a unit is null; name modules inside the model");
    check(unit != &model, "[", kReplicasOp, "] ", model.type_name(),
          " is the model itself, which is always the last unit; name modules inside it");
    check(std::find(all.begin(), all.end(), unit) != all.end(), "[", kReplicasOp, "] the unit ",
          unit->type_name(), " is not inside ", model.type_name(), "; name modules of this model");
    check(std::count(o.units.begin(), o.units.end(), unit) == 1, "[", kReplicasOp, "] the unit ",
          unit->path().empty() ? unit->type_name() : unit->path(), " is named twice; name each once");
  }
  std::vector<nn::Module*> units;
  add_inner_first(model, o.units, units);
  units.push_back(&model);
  const FsdpOptions options{.reshard_after_forward = o.reshard_after_forward,
                            .max_full_units = o.max_full_units,
                            .device = devices[0],
                            .offload = o.offload,
                            .mixed_precision = o.mixed_precision,
                            .reduce = ReduceOp::sum};  // ReplicaGraphs divides the loss before backward
  groups_ = make_replica_groups(devices, o.backend, {});
  for (nn::Module* unit : units) {
    const std::string wrong = why_not_shardable(*unit, options, groups_, devices);
    check(wrong.empty(), "[", kReplicasOp, "] ", wrong);
  }
  for (nn::Module* unit : units) unit_ = shard_module(*unit, options, groups_, devices);
  for (const auto& [name, buffer] : model.named_buffers()) add_slot(name, buffer, false);
  replicate_all();
  set_callable(false);
}

ShardedReplicas::~ShardedReplicas() = default;

// A single device can be called directly.
void ShardedReplicas::set_callable(bool on) const {
  unit_->model().why_not_callable = on || size() == 1 ? nullptr : kNotCallable;
}

void ShardedReplicas::abort(int replica, const std::string& why) noexcept {
  groups_[static_cast<std::size_t>(replica)]->abort(why);
}

// A replica that called fewer units than the others would leave them waiting. Over NCCL, calls are not
// compared.
void ShardedReplicas::end_task(int replica) {
  ProcessGroup& group = *groups_[static_cast<std::size_t>(replica)];
  if (size() > 1 && group.backend() == "local") group.barrier("end of the pass");
}

void ShardedReplicas::renew_groups() {
  const ReplicaGroups groups = make_replica_groups(devices, options.backend, {});
  for (ShardedUnit* unit : unit_->model().units()) unit->set_groups(groups);
  unit_->model().forget_orders();
  groups_ = groups;
  failed_ = false;
}

void ShardedReplicas::drop_group() noexcept {
  Replicas::drop_group();
  failed_ = true;
  try {
    renew_groups();
  } catch (const std::exception&) {  // the next run tries again, and reports it
  }
}

void ShardedReplicas::begin_run() {
  if (failed_) renew_groups();
  set_callable(true);
}
void ShardedReplicas::end_run() noexcept { set_callable(false); }

}  // namespace tapestry::distributed
