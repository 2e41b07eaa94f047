#include "tapestry/distributed/checkpoint/checkpoint.h"

#include <functional>

#include "tapestry/core/error.h"
#include "tapestry/distributed/checkpoint/internal/load.h"
#include "tapestry/distributed/comm/text.h"

namespace tapestry::distributed {

nn::Progress load_checkpoint(const std::string& path, const std::shared_ptr<ProcessGroup>& group,
                             const ShardedTraining& training) {
  if (!group) return load_sharded(path, training);
  // The ranks agree that all of them can load before any of them changes anything.
  std::function<nn::Progress()> load;
  nn::Progress progress;
  on_all_ranks(*group, "load_checkpoint",
               [&] { load = checkpoint::prepare_load(path, training, {.rank = group->rank()}); });
  on_all_ranks(*group, "load_checkpoint", [&] { progress = load(); });
  return progress;
}

DistributedCheckpointer::DistributedCheckpointer(std::shared_ptr<ProcessGroup> group,
                                                 const std::string& folder, const Options& options,
                                                 CheckpointFiles files)
    : group_(std::move(group)), kind_(files) {
  check(group_ != nullptr,
        "[DistributedCheckpointer] the group is null; pass what init_process_group() returned");
  folder_ = broadcast_text(*group_, folder, 0, "folder of the checkpoints");
  if (kind_ == CheckpointFiles::sharded) {
    shards_ = std::make_unique<ShardedCheckpointer>(folder_, group_, options);
    return;
  }
  on_rank_0(*group_, "DistributedCheckpointer",
            [&] { files_ = std::make_unique<nn::Checkpointer>(folder_, options); });
}

std::int64_t DistributedCheckpointer::last_step(CheckpointFiles kind) const {
  const std::vector<std::int64_t> steps = kind == CheckpointFiles::sharded
                                              ? ShardedCheckpointer(folder_, nullptr).steps()
                                              : nn::Checkpointer(folder_).steps();
  return steps.empty() ? -1 : steps.back();
}

std::string DistributedCheckpointer::save(const ShardedTraining& training, const nn::Progress& progress) {
  on_rank_0(*group_, "save", [&] {
    const std::int64_t last = last_step(other_kind());
    check(last <= progress.step, "[DistributedCheckpointer] ", folder_, " has a checkpoint of step ", last,
          ", later than step ", progress.step, "; resume from it, or choose another folder");
  });
  if (shards_) return shards_->save(training, progress);
  std::string path;
  on_rank_0(*group_, "save", [&] { path = files_->begin_save(progress); });
  path = broadcast_text(*group_, path, 0, "path of the checkpoint");
  save_checkpoint(path, group_, training, progress);
  on_rank_0(*group_, "save", [&] { files_->end_save(progress); });
  return path;
}

std::optional<nn::Progress> DistributedCheckpointer::resume(const ShardedTraining& training) {
  std::string newest;
  on_rank_0(*group_, "resume", [&] {
    if (last_step(other_kind()) > last_step(kind_)) newest = "other";
  });
  if (broadcast_text(*group_, newest, 0, "kind of the latest checkpoint") == "other") {
    const std::optional<nn::Progress> progress =
        DistributedCheckpointer(group_, folder_, {}, other_kind()).resume(training);
    on_rank_0(*group_, "resume", [&] { shards_ ? shards_->lock() : files_->lock(); });
    return progress;
  }
  if (shards_) return shards_->resume(training);
  std::string latest;
  on_rank_0(*group_, "resume", [&] {
    files_->lock();
    latest = files_->latest().value_or("");
  });
  latest = broadcast_text(*group_, latest, 0, "path of the checkpoint");
  if (latest.empty()) return {};
  return load_checkpoint(latest, group_, training);
}

}  // namespace tapestry::distributed
