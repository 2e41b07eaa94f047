#pragma once
// Tied weights over ranks: one parameter of the unsplit model, of which each rank whose stage uses it has a
// copy. Copies begin equal; what every pass adds to their gradients is summed over those ranks, so that
// optimizers of all of them take the same steps.
#include <memory>
#include <string>
#include <vector>

#include "tapestry/distributed/comm/process_group.h"
#include "tapestry/distributed/pipeline/stage.h"

namespace tapestry::distributed {

class RankTies {
 public:
  /// For each of them the names that it has, as many on every rank. A collective call; ValueError on all
  /// ranks if one cannot be.
  RankTies(ProcessGroup& group, const Stage& stage, const std::vector<std::vector<std::string>>& names);

  /// Puts aside what gradients have from earlier passes.
  void begin();
  /// Sums what this pass has added over the ranks, and adds it to what was put aside; what no rank has used
  /// keeps the gradient that it had, or none. Collective; ValueError on all ranks if some train a tie and
  /// others froze it.
  void add_gradients();
  /// The copies become equal to the first rank's. Collective.
  void share_values();

  /// True if it is for another rank to count this parameter where all ranks' are counted together.
  bool is_counted_elsewhere(const nn::Parameter& parameter) const;

 private:
  struct Tie {
    std::size_t index;  // of names_
    nn::Parameter parameter;
    std::shared_ptr<ProcessGroup> group;  // of the ranks that have it
    Tensor before = {};                   // its gradient
  };
  std::vector<bool> used_by_any() const;

  ProcessGroup& group_;  // of all ranks
  const std::vector<std::vector<std::string>> names_;
  std::vector<Tie> ties_;  // this rank's
};

}  // namespace tapestry::distributed
