#pragma once
// The replicas of ShardedDataParallel: each is a rank of a group in this process, and has a shard of every
// parameter and a copy of every buffer.
#include <memory>
#include <vector>

#include "tapestry/distributed/data_parallel/internal/replicas.h"
#include "tapestry/distributed/fsdp/internal/sharded_unit.h"
#include "tapestry/distributed/fsdp/sharded_data_parallel.h"

namespace tapestry::distributed {

class ShardedReplicas final : public Replicas {
 public:
  ShardedReplicas(nn::Module& model, std::vector<Device> devices, const ShardedDataParallelOptions& options);
  ~ShardedReplicas() override;

  bool are_sharded() const override { return true; }
  const std::shared_ptr<ShardedUnit>& unit() const { return unit_; }  // the model's own
  using Replicas::model;

 private:
  void abort(int replica, const std::string& why) noexcept override;
  void drop_group() noexcept override;
  void end_task(int replica) override;
  void begin_run() override;
  void end_run() noexcept override;
  void renew_groups();
  void set_callable(bool on) const;

  ReplicaGroups groups_;
  bool failed_ = false;  // the groups were aborted
  std::shared_ptr<ShardedUnit> unit_;
};

}  // namespace tapestry::distributed
