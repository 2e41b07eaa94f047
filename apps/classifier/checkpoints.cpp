#include "tapestry/apps/classifier/checkpoints.h"

#include "tapestry/distributed/comm/text.h"
#include "tapestry/distributed/zero/zero.h"

namespace apps {

using namespace tapestry;

Checkpoints::Checkpoints(const Options& options, const Ranks& ranks, const std::string& folder) {
  if (options.parallel != "fsdp") {
    files_.emplace(ranks.group(), folder);
    return;
  }
  // Only rank 0 knows the name of a new run's folder.
  shards_.emplace(distributed::broadcast_text(*ranks.group(), folder, 0, "folder of the checkpoints"),
                  ranks.group());
}

std::optional<nn::Progress> Checkpoints::resume(const nn::Training& training) {
  return files_ ? files_->resume(training) : shards_->resume(training);
}

std::string Checkpoints::save(const nn::Training& training, const nn::Progress& progress) {
  if (shards_) return shards_->save(training, progress);
  if (auto* const zero = dynamic_cast<distributed::ZeroBase*>(training.optimizer))
    zero->consolidate_state_dict(0);
  return files_->save(training, progress);
}

}  // namespace apps
