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

}  // namespace tapestry::distributed
