#pragma once
// The checkpoints of a run. With --parallel fsdp, every rank writes its part of them.
#include <memory>
#include <optional>
#include <string>

#include "tapestry/distributed/checkpoint/checkpoint.h"

namespace apps {

/// One file per checkpoint, which rank 0 writes, or, with --parallel fsdp, one folder with a file of each
/// rank. Every call is collective. A job may resume with another number of ranks: each step trains on the
/// same images then, divided among more or fewer ranks.
class Checkpoints {
 public:
  /// `folder` is that of rank 0. If `sharded`, which --parallel fsdp needs, all ranks must see it.
  Checkpoints(const std::shared_ptr<tapestry::distributed::ProcessGroup>& group, const std::string& folder,
              bool sharded, const tapestry::nn::CheckpointerOptions& options = {});

  /// Loads the latest checkpoint. Null members of `training` are not loaded.
  std::optional<tapestry::nn::Progress> resume(const tapestry::nn::Training& training);
  /// Returns the path of the checkpoint. The state of a ZeroRedundancyOptimizer is collected first.
  std::string save(const tapestry::nn::Training& training, const tapestry::nn::Progress& progress);

 private:
  std::optional<tapestry::distributed::DistributedCheckpointer> files_;
  std::optional<tapestry::distributed::ShardedCheckpointer> shards_;
};

}  // namespace apps
