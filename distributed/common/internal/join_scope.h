#pragma once
// JoinScope: how the ranks in join() agree on the next collective action.
//
// Before each action, every rank gathers what all ranks are about to do. A rank that has joined has nothing
// to do, so it shadows the action of the others.
#include <cstdint>
#include <vector>

#include "tapestry/distributed/common/join.h"

namespace tapestry::optim {
class Optimizer;
}

namespace tapestry::distributed {

class JoinScope {
 public:
  enum Action { forward = 1, backward, step, count };

  JoinScope(const std::vector<Joinable*>& joinables, const JoinOptions& options);
  /// Announces an action of this rank. All ranks see the `number` of the lowest rank that still has batches,
  /// and the sum of all numbers. Throws on every rank if the ranks do different things.
  void announce(const Joinable& who, Action action, std::int64_t number = 0);
  /// Shadows the actions of the other ranks until all have joined.
  void take_part();

  const JoinOptions options;
  bool contains(const Joinable* joinable) const;
  bool has_joined() const { return joined_; }
  int lead() const { return lead_; }  ///< the lowest rank that had batches in the last action
  int live() const { return live_; }  ///< the number of such ranks
  bool some_joined() const { return live_ < group_.size(); }
  bool ever_joined() const { return ever_joined_; }  ///< some ranks joined before the last action
  std::int64_t lead_number() const { return lead_number_; }
  std::int64_t total() const { return total_; }
  /// What sums over the ranks are divided by.
  double divisor() const { return options.divide_by_initial_world_size ? group_.size() : live_; }

 private:
  std::int64_t gather(std::int64_t code, std::int64_t number);

  ProcessGroup& group_;
  const std::vector<Joinable*> joinables_;
  bool joined_ = false, ever_joined_ = false;
  int lead_ = 0, live_ = 0;
  std::int64_t lead_number_ = 0, total_ = 0;
};

/// mean_over_ranks() of a rank in join().
Tensor mean_over_ranks(JoinScope& scope, const Joinable& who, const Tensor& sum, std::int64_t count);
/// Collective: gives all ranks the optimizer's options, state and number of steps of the rank `lead`.
void broadcast_optimizer(ProcessGroup& group, optim::Optimizer& optimizer, int lead);

}  // namespace tapestry::distributed
