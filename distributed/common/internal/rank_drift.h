#pragma once
// RankDrift finds ranks that train one model and no longer do the same: another learning rate, a step that
// one rank skipped, weights that one rank changed alone.
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tapestry/distributed/comm/process_group.h"
#include "tapestry/distributed/common/internal/same_model.h"
#include "tapestry/nn/materialize.h"

namespace tapestry::optim {
class Optimizer;
}

namespace tapestry::distributed {

class RankDrift {
 public:
  /// `op` begins the texts of errors. after_pass() compares in the first two passes and in every `every`-th
  /// one; 0 means never.
  RankDrift(const char* op, std::shared_ptr<ProcessGroup> group, nn::NamedSlots parameters, int every = 0)
      : RankDrift(op, RankGrid{std::move(group)}, std::move(parameters), every) {}
  /// Compares in both groups of a grid.
  RankDrift(const char* op, RankGrid grid, nn::NamedSlots parameters, int every);

  /// True if the group's ranks train copies of one model, of one stage of a pipeline, or of what one rank of
  /// a tensor axis has: parameters that ranks of other groups divide are then compared like whole ones.
  bool same_stage = false;

  /// The optimizers that have at least one of the parameters.
  const std::vector<optim::Optimizer*>& optimizers();
  /// The sum of their steps.
  std::uint64_t steps();
  /// A hash of what compare_optimizers() compares.
  std::uint64_t fingerprint();
  /// Collective: throws ValueError on every rank, with the first difference, unless the optimizers of the
  /// parameters have equal options and have taken equally many steps on all ranks.
  void compare_optimizers();
  /// Collective: throws ValueError on every rank, with names, if whole parameters have other values than on
  /// rank 0. Shards are not compared.
  void compare_values();
  /// Counts a pass, on all ranks. When a comparison is due, it compares the optimizers, and how often each
  /// parameter was changed: one small all-gather. Where the counts differ, a shard is an error, and of whole
  /// parameters the values decide, because a rank may have restored them.
  void after_pass();

 private:
  struct Seen {
    Tensor tensor;
    std::uint32_t version = 0;
  };
  const Tensor& own(std::size_t i) const;
  // True if all ranks of the group have equal elements of the parameter.
  bool is_equal(std::size_t i, const ProcessGroup& group) const;
  std::vector<std::int64_t> count_changes();
  std::string describe();
  void compare_optimizers(ProcessGroup& group);
  void compare_values(ProcessGroup& group);
  void compare_changes(ProcessGroup& group, const std::vector<std::int64_t>& mine);

  const char* const op_;
  const RankGrid grid_;
  const nn::NamedSlots parameters_;
  const int every_;
  std::uint64_t passes_ = 0, version_ = 0;
  std::vector<optim::Optimizer*> optimizers_;
  std::vector<std::string> names_;  // of the optimizers' parameters
  std::vector<Seen> seen_;          // by parameter, at the last comparison
};

/// Collective: check_ranks() of these parameters; see rank_check.h. `op` begins the texts of errors.
void check_ranks(const char* op, const std::shared_ptr<ProcessGroup>& group,
                 const nn::NamedSlots& parameters);

}  // namespace tapestry::distributed
