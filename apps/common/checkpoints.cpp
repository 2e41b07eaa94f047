#include "tapestry/apps/common/checkpoints.h"

#include "tapestry/distributed/comm/text.h"

namespace apps {

using namespace tapestry;

Checkpoints::Checkpoints(const std::shared_ptr<distributed::ProcessGroup>& group, const std::string& folder,
                         bool sharded, const nn::CheckpointerOptions& options) {
  if (!sharded) {
    files_.emplace(group, folder, options);
    return;
  }
  // Only rank 0 knows the name of a new run's folder.
  shards_.emplace(distributed::broadcast_text(*group, folder, 0, "folder of the checkpoints"), group,
                  options);
}

std::optional<nn::Progress> Checkpoints::resume(const nn::Training& training) {
  return files_ ? files_->resume(training) : shards_->resume(training);
}

std::string Checkpoints::save(const nn::Training& training, const nn::Progress& progress) {
  if (shards_) return shards_->save(training, progress);
  return files_->save(training, progress);
}

}  // namespace apps
