#pragma once
// State dicts of stages, by the names that the unsplit model has.
#include <cstdint>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "tapestry/distributed/comm/process_group.h"
#include "tapestry/distributed/pipeline/stage.h"

namespace tapestry::distributed {

/// Of these stages together, sharing the elements. ValueError if two tensors have one name.
nn::StateDict state_of(const std::vector<Stage>& stages);

/// What a dict has for a state: checked at once, loaded later.
class StateMatch {
 public:
  /// `own` and what `others` have is all that the dict may hold. Throws ValueError as
  /// nn::Module::load_state_dict does. Both dicts outlive it.
  StateMatch(const nn::StateDict& own, const std::set<std::string>& others, const nn::StateDict& dict,
             bool strict);
  nn::LoadResult load();

 private:
  std::vector<std::pair<const Tensor*, const Tensor*>> pairs_;  // to, from
  nn::LoadResult result_;
};

/// Collective: the names of each rank's state.
std::vector<std::vector<std::string>> names_by_rank(ProcessGroup& group, const nn::StateDict& own);

/// Collective: all ranks' states on rank 0, in the host's memory; empty elsewhere. A name that several ranks
/// have must be in `shared`, and is taken from the first: ValueError on all ranks otherwise.
nn::StateDict gather_state(ProcessGroup& group, const nn::StateDict& own, const std::set<std::string>& shared,
                           std::uint32_t tag);

}  // namespace tapestry::distributed
