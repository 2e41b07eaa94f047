#pragma once
// Tied weights of stages on several ranks. The unsplit model has one parameter; each rank whose stage uses it
// has a copy. The copies start with equal values. The gradients of every pass are summed over these ranks, so
// their optimizers take the same steps.
#include <memory>
#include <string>
#include <vector>

#include "tapestry/distributed/comm/process_group.h"
#include "tapestry/distributed/pipeline/stage.h"

namespace tapestry::distributed {

class RankTiedParameters {
 public:
  /// Collective. names[i] lists the names of tied weight i; all ranks pass the same lists. Throws ValueError
  /// on all ranks if the lists differ or a tied weight differs between its ranks.
  RankTiedParameters(ProcessGroup& group, const Stage& stage,
                     const std::vector<std::vector<std::string>>& names);

  /// Sets the gradients of earlier passes aside, so that grad() accumulates this pass alone.
  void begin_pass();
  /// Collective: sums the gradients of this pass over the ranks and adds them to those of earlier passes. If
  /// no rank used a tied weight in this pass, its grad() is what it was before. Throws ValueError on all
  /// ranks if some ranks train a tied weight and others froze it.
  void add_gradients();
  /// Collective: copies the first rank's values to the others.
  void broadcast_values();

  /// True if another rank includes this parameter in sums over the parameters of all ranks, such as the
  /// gradient norm. Each tied weight must count once.
  bool is_counted_elsewhere(const nn::Parameter& parameter) const;

 private:
  struct Tie {
    std::size_t index;  // the index of the tied weight in names_
    nn::Parameter parameter;
    std::shared_ptr<ProcessGroup> group;  // the ranks that have the tied weight
    Tensor earlier = {};                  // the sum of the gradients of earlier passes
  };
  std::vector<bool> used_by_any() const;

  ProcessGroup& group_;  // all ranks
  const std::vector<std::vector<std::string>> names_;
  std::vector<Tie> ties_;  // the tied weights of this rank
};

}  // namespace tapestry::distributed
