#pragma once
// What modes that average gradients do with them, for measurements of it.
#include <cstddef>
#include <vector>

#include "tapestry/apps/compare/watched_model.h"
#include "tapestry/distributed/comm/process_group.h"

namespace apps::compare {

/// A bucket for each block of a model. As the watcher of a step it copies gradients there when they have
/// come, and makes them views of it, as Reducer does.
class Buckets : public Watcher {
 public:
  Buckets(WatchedModel& model, tapestry::distributed::ProcessGroup& group);

  /// Whether the group's ranks average them while backward goes on, all but the last.
  bool posts = false;

  void enter(tapestry::Activity activity, std::size_t k) override;
  /// The model's backward, and the copies of the last block that it comes to.
  void backward();
  /// The mean of all, one after another.
  void average_all();
  /// Of those that were posted in the last step: seconds, from when the last rank had got to each; and bytes.
  double posted_s() const;
  double posted_bytes() const;

 private:
  void fill(std::size_t k);
  tapestry::distributed::Work average(std::size_t k);

  WatchedModel& model_;
  tapestry::distributed::ProcessGroup& group_;
  std::vector<tapestry::Tensor> buckets_;
  std::vector<std::vector<tapestry::Tensor>> views_;
  std::vector<tapestry::distributed::Work> works_;
};

/// The largest of each of these values among the ranks. Collective.
std::vector<double> largest_of(tapestry::distributed::ProcessGroup& group, tapestry::Device device,
                               const std::vector<double>& values);

}  // namespace apps::compare
