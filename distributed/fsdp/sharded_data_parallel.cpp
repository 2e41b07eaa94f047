#include "tapestry/distributed/fsdp/sharded_data_parallel.h"

#include <cstdio>
#include <map>

#include "tapestry/autograd/ops/creation.h"
#include "tapestry/autograd/ops/view.h"
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

// Puts the replicas' parts of a tensor together. parts[r] has the rows of replica r.
Tensor join_rows(const nn::Sharding& sharding, const std::vector<Tensor>& parts, Device device) {
  const NoGradGuard no_grad;
  const Shape& sizes = sharding.full_sizes();
  const Tensor whole = empty(sizes, {parts[0].dtype(), device});
  const Tensor rows = sizes.size() == 0 ? whole.reshape({1}) : whole;
  for (std::size_t r = 0; r < parts.size(); ++r) {
    const nn::ShardRows own = sharding.rows(static_cast<int>(r));
    if (own.rows > 0) rows.narrow(0, own.first_row, own.rows).copy_(parts[r].detach());
  }
  return whole;
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
  std::vector<nn::StateDict> of_replicas;
  for (std::size_t r = 0; r < sharded_->size(); ++r) {
    const ContextGuard guard(context_of(static_cast<int>(r)));
    of_replicas.push_back(sharded_->model().state_dict());
  }
  // The entries have names of every path to a slot, so the shard's memory identifies the parameter.
  std::map<const Storage*, const ShardedParameter*> parameters;
  for (const ShardedUnit* unit : sharded_->unit()->model().units())
    for (const ShardedUnit::Member& m : unit->members())
      parameters.emplace(m.parameter->shard(0).storage().get(), m.parameter.get());
  nn::StateDict whole;
  for (std::size_t i = 0; i < of_replicas[0].size(); ++i) {
    const auto& [name, first] = of_replicas[0][i];
    const auto found = parameters.find(first.storage().get());
    std::vector<Tensor> parts;
    for (const nn::StateDict& own : of_replicas) parts.push_back(own[i].second);
    whole.emplace_back(name, found == parameters.end() ? first.detach().to(device).clone()
                                                       : join_rows(*found->second, parts, device));
  }
  return whole;
}

nn::StateDict ShardedDataParallelBase::whole_state_dict(const optim::Optimizer& optimizer,
                                                        Device device) const {
  check_device("whole_state_dict", device);
  const std::vector<nn::Parameter> params = optimizer.parameters();
  std::vector<std::map<std::string, Tensor>> others(sharded_->size());
  for (std::size_t r = 1; r < sharded_->size(); ++r)
    for (const optim::StateTensor& t : optimizer.state_tensors(static_cast<int>(r)))
      others[r].emplace(t.key, t.tensor);
  nn::StateDict whole;
  for (const optim::StateTensor& t : optimizer.state_tensors(0)) {
    const nn::Sharding* const sharding =
        t.like_param ? params[static_cast<std::size_t>(t.param)].sharding().get() : nullptr;
    if (!sharding) {
      whole.emplace_back(t.key, t.tensor.to(kCPU).clone());
      continue;
    }
    std::vector<Tensor> parts{t.tensor};
    for (std::size_t r = 1; r < sharded_->size(); ++r) {
      const auto found = others[r].find(t.key);
      check(found != others[r].end(), "[ShardedDataParallel] the optimizer has ", t.key, " for ",
            sharded_->devices[0], " and not for ", sharded_->devices[r],
            "; call step() before the state is saved");
      parts.push_back(found->second);
    }
    whole.emplace_back(t.key, join_rows(*sharding, parts, device));
  }
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
