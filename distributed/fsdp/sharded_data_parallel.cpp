#include "tapestry/distributed/fsdp/sharded_data_parallel.h"

#include <cstdio>

#include "tapestry/core/error.h"
#include "tapestry/distributed/fsdp/internal/sharded_model.h"
#include "tapestry/distributed/fsdp/internal/sharded_replicas.h"

namespace tapestry::distributed {
namespace {

// A thread whose modules and optimizers show this replica.
Context context_of(int replica) {
  Context context = current_context();
  context.replica = static_cast<std::int16_t>(replica);
  return context;
}

}  // namespace

// ---- Unsharded ----

ShardedDataParallelBase::Unsharded::Unsharded(std::shared_ptr<ShardedReplicas> replicas)
    : replicas_(std::move(replicas)), scopes_(replicas_->size()) {
  const auto leave = [this] {
    on_replicas(replicas_->devices, [this](int r) {
      auto& scopes = scopes_[static_cast<std::size_t>(r)];
      while (!scopes.empty()) scopes.pop_back();
    });
  };
  try {
    replicas_->run(replicas_->size(), true, [this](int r) {
      ShardedModel& model = replicas_->unit()->model();
      auto& scopes = scopes_[static_cast<std::size_t>(r)];
      scopes.push_back(model.enter(replicas_->unit(), /*by_hand=*/true));
      for (ShardedUnit* unit : model.units())
        if (unit != replicas_->unit().get())
          scopes.push_back(model.enter(unit->shared_from_this(), /*by_hand=*/true));
    });
  } catch (...) {
    leave();
    throw;
  }
}

ShardedDataParallelBase::Unsharded::~Unsharded() {
  try {
    // All devices read the first one's tensors before it frees them.
    on_replicas(replicas_->devices, [this](int r) {
      const NoGradGuard no_grad;
      for (const ShardedUnit* unit : replicas_->unit()->model().units())
        for (const ShardedUnit::Member& m : unit->members())
          if (r > 0 && m.parameter->has_changes(0))
            m.parameter->full(r).detach().copy_(m.parameter->full(0).detach());
    });
    on_replicas(replicas_->devices, [this](int r) {
      auto& scopes = scopes_[static_cast<std::size_t>(r)];
      while (!scopes.empty()) scopes.pop_back();
    });
  } catch (const std::exception& e) {
    std::fprintf(stderr, "[ShardedDataParallel] changes under unshard() may be lost: %s\n", e.what());
  }
}

// ---- ShardedDataParallelBase ----

ShardedDataParallelBase::ShardedDataParallelBase(std::shared_ptr<ShardedReplicas> replicas)
    : DataParallelBase(replicas), sharded_(std::move(replicas)) {}
ShardedDataParallelBase::ShardedDataParallelBase(nn::Module& model, DeviceList devices,
                                                 const ShardedDataParallelOptions& options)
    : ShardedDataParallelBase(std::make_shared<ShardedReplicas>(model, devices.devices(), options)) {}
ShardedDataParallelBase::~ShardedDataParallelBase() = default;

NoSync ShardedDataParallelBase::no_sync() const { return FullyShard(sharded_->unit()).no_sync(); }
void ShardedDataParallelBase::discard_unreduced() const { FullyShard(sharded_->unit()).discard_unreduced(); }
ShardedDataParallelBase::Unsharded ShardedDataParallelBase::unshard() const { return Unsharded(sharded_); }

nn::StateDict ShardedDataParallelBase::whole_state_dict(Device device) const {
  check_device("whole_state_dict", device);
  const NoGradGuard no_grad;
  nn::StateDict whole = sharded_->model().state_dict();
  for (auto& [name, t] : whole) t = t.device() == device ? t.clone() : t.to(device);
  return whole;
}

nn::StateDict ShardedDataParallelBase::whole_state_dict(const optim::Optimizer& optimizer,
                                                        Device device) const {
  check_device("whole_state_dict", device);
  nn::StateDict whole = optimizer.state_dict();
  for (auto& [key, t] : whole)
    if (t.dim() > 0) t = t.to(device);  // counts stay where load_state_dict() reads them
  return whole;
}

FsdpReport ShardedDataParallelBase::report(int replica) const {
  check<IndexError>(replica >= 0 && replica < static_cast<int>(sharded_->size()),
                    "[ShardedDataParallel] replica ", replica, " was requested, but there are ",
                    sharded_->size());
  const ContextGuard guard(context_of(replica));
  return FullyShard(sharded_->unit()).report();
}
void ShardedDataParallelBase::reset_report() const { FullyShard(sharded_->unit()).reset_report(); }
std::vector<std::vector<std::string>> ShardedDataParallelBase::units() const {
  return FullyShard(sharded_->unit()).units();
}

}  // namespace tapestry::distributed
