#pragma once
// State dicts of stages. Tensors have the names that they have in the unsplit model.
#include <cstdint>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "tapestry/distributed/comm/process_group.h"
#include "tapestry/distributed/pipeline/stage.h"

namespace tapestry::distributed {

/// The state dict of these stages. It shares memory with their parameters and buffers. Throws ValueError if
/// two tensors have the same name.
nn::StateDict state_dict_of(const std::vector<Stage>& stages);

/// Loads a state dict in two steps: the constructor checks everything, load() copies.
class StateDictLoader {
 public:
  /// Names in `dict` that are neither in `own` nor in `others` are unexpected. Throws ValueError as
  /// nn::Module::load_state_dict does. Both dicts must outlive this object.
  StateDictLoader(const nn::StateDict& own, const std::set<std::string>& others, const nn::StateDict& dict,
                  bool strict);
  nn::LoadResult load();

 private:
  std::vector<std::pair<const Tensor*, const Tensor*>> pairs_;  // to, from
  nn::LoadResult result_;
};

/// Collective: returns the names in each rank's state dict.
std::vector<std::vector<std::string>> names_by_rank(ProcessGroup& group, const nn::StateDict& own);

/// Collective: returns the state of all ranks on rank 0, in host memory, and an empty dict on other ranks. If
/// several ranks have a name, the first rank's tensor is taken. Throws ValueError on all ranks if such a name
/// is not in `shared`.
nn::StateDict gather_state_dict(ProcessGroup& group, const nn::StateDict& own,
                                const std::set<std::string>& shared, std::uint32_t tag);

}  // namespace tapestry::distributed
