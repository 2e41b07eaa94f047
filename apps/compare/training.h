#pragma once
#include <memory>
#include <vector>

#include "tapestry/apps/compare/mode.h"
#include "tapestry/apps/compare/models.h"
#include "tapestry/apps/compare/result.h"

namespace apps::compare {

/// A model that is ready to be trained in one mode. The comparison measures where time goes through the
/// SpanScopes (core/timeline.h) that the library opens.
class Training {
 public:
  Training(const Mode& mode, const Workload& workload);

  /// Runs forward, backward and the optimizer. Returns the mean loss of the batch before the update. If there
  /// are several processes, each returns its part of the mean: the parts add up to it.
  tapestry::Tensor step();
  /// The devices on which this process computes.
  const std::vector<tapestry::Device>& devices() const { return strategy_.devices(); }
  const tapestry::distributed::Strategy& strategy() const { return strategy_; }
  /// What this process sent from one device, or rank, to another in the last step.
  std::vector<Traffic> traffic() const;
  /// Replaces the subjects of spans by names of blocks and axes: see Result::spans.
  void name_subjects(std::vector<tapestry::Span>& spans) const;
  /// The group that connects the processes, or null if there is only one process.
  tapestry::distributed::ProcessGroup* group() { return world_.get(); }

 private:
  std::vector<tapestry::distributed::Stage> stages(const std::vector<tapestry::Device>& devices);

  const Workload w_;
  const std::shared_ptr<tapestry::distributed::ProcessGroup> world_;
  std::vector<Block> blocks_;
  std::vector<std::shared_ptr<tapestry::nn::Sequential>> stage_modules_;
  std::shared_ptr<tapestry::nn::Sequential> model_;
  tapestry::distributed::Strategy strategy_;
  tapestry::distributed::Batch batch_;
  std::unique_ptr<tapestry::optim::Optimizer> optimizer_;
};

}  // namespace apps::compare
