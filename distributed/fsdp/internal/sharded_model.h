#pragma once
// ShardedModel decides when the units of a model are gathered, freed and reduced.
//
// Forward. Calling a unit's module enters a scope. The scope gathers the unit, posts the gather of the units
// that the last forward entered next, and frees the unit when it ends. It also records on a tape when the
// unit was entered and left, in the sequence numbers of the nodes of the graph.
//
// Backward. The engine runs the nodes of a pass in descending order of their numbers. So the tape, read
// backwards, says in advance in which order the pass opens and closes the units: a unit is open while the
// engine runs nodes that the unit's scope recorded. A pass takes the part of the tape that has nodes in it:
//
//     tape     enter a, leave a, enter b, leave b, enter c, leave c
//     steps    open c,  close c, open b,  close b, open a,  close a
//     posted   gather c, gather b | scatter c, gather a | scatter b | scatter a
//
// Opening a unit posts its gather and that of the units opened next. Closing it frees it and posts its
// reduce-scatter, and, if there are copies of the model, the all-reduce of the result, which begins when the
// reduce-scatter is done. Each step has the number of its node, and is taken when the pass has come to an
// older node. The model looks where the pass is whenever backward reads a saved parameter or a parameter's
// gradient is complete. A unit whose oldest node has run, and whose gradients are all complete, is closed at
// once: the unit before it may read no parameter before its own gradients exist. The order of collectives is
// therefore a function of the graph, and the same on all ranks.
#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "tapestry/core/stream.h"

#include "tapestry/distributed/fsdp/internal/sharded_unit.h"

namespace tapestry::distributed {

/// The streams of a replica whose shards are in host memory.
struct OffloadStreams {
  Stream to_gpu;   ///< copies shards; waits for nothing
  Stream gather;   ///< waits for these copies, and then begins gathers
  Stream to_host;  ///< copies reduced gradients
};

class ShardedModel : public std::enable_shared_from_this<ShardedModel> {
 public:
  explicit ShardedModel(std::size_t replicas) : lanes_(replicas) {}

  int max_full_units = 2;
  /// If not null, calls of the modules throw this text: replicas that are ranks must all be called together.
  const char* why_not_callable = nullptr;
  /// Called at the end of every backward pass that has reduced gradients.
  std::function<void()> after_pass = [] {};
  /// False: gradients stay on the full parameters. Read when a pass begins. A NoSync shares it.
  const std::shared_ptr<bool> synchronize = std::make_shared<bool>(true);
  /// False: gradients are reduced over the ranks that divide the parameters, and not over the copies of the
  /// model. Read and shared like `synchronize`.
  const std::shared_ptr<bool> all_reduce = std::make_shared<bool>(true);
  /// For a step that is computed in parts: a unit that was gathered stays full until the pass that reduces
  /// gradients, the last one, no longer needs it. let_go() ends that, and frees all
  /// units that nothing uses now.
  void keep_full();
  void let_go();
  /// Collective: reduces gradients that passes under no_sync() left and that no pass has reduced since.
  void reduce_rest(int replica);

  void add(ShardedUnit& unit) { units_.push_back(&unit); }
  void remove(ShardedUnit& unit);
  const std::vector<ShardedUnit*>& units() const { return units_; }
  const OffloadStreams& offload_streams(int replica, Device device);
  int most_full_units(int replica) const { return lanes_[static_cast<std::size_t>(replica)].most_full; }
  void reset_most_full_units();
  /// Forgets in which order the last forward entered the units. The replicas of one process must do so after
  /// an exception: some of them may have reached the end of that forward.
  void forget_orders();

  /// The scope of a call of the unit's module, or, if `by_hand`, of unshard().
  std::shared_ptr<void> enter(const std::shared_ptr<ShardedUnit>& unit, bool by_hand = false);
  /// The scope of a call of another module with parameters. In it, reading a shard throws.
  std::shared_ptr<void> watch();
  /// True if the calling thread is in one of these scopes.
  bool is_computing() const;

  /// Called when backward reads a saved parameter of the unit. Returns when the unit is full.
  void request(ShardedUnit& unit, int replica);
  /// Called when the gradient of a parameter of the unit is complete.
  void on_gradient(ShardedUnit& unit, int replica);

 private:
  struct Occurrence {
    ShardedUnit* unit;
    std::uint64_t entered, left;
  };
  struct Step {
    std::uint64_t at;
    ShardedUnit* unit;
    bool opens;
    bool last;             // the pass does not open the unit again
    std::uint64_t oldest;  // the oldest node of the pass that the scope recorded
  };
  // A backward pass in progress. There are several if a hook runs another pass.
  struct Pass {
    std::uint64_t id = 0;
    bool accumulates = false, synchronize = false, all_reduce = false;
    bool ended = false;  // nothing reads parameters any more
    std::vector<Step> steps;
    std::size_t next = 0;
    std::vector<ShardedUnit*> open;    // the innermost is the last
    std::vector<ShardedUnit*> closed;  // for the last time
    std::vector<ShardedUnit*> extra;   // gathered outside their steps, the newest is the last
    std::vector<ShardedUnit*> unplanned_gradients;
    std::map<const ShardedUnit*, int> awaited;  // gradients of a unit that the pass has not computed yet
    ShardedUnit* scattering = nullptr;
    std::vector<ShardedUnit*> summing;  // whose all-reduce is in flight, the oldest first
  };
  // The state of one replica.
  struct Lane {
    int depth = 0;  // of forward scopes
    // The units in the order in which the last forward entered them, by the outermost unit and by_hand.
    std::map<std::pair<ShardedUnit*, bool>, std::vector<ShardedUnit*>> orders;
    std::pair<ShardedUnit*, bool> outermost{};
    std::vector<ShardedUnit*> entered;  // in the forward in progress
    std::size_t at = 0;                 // its place in the order
    std::deque<Occurrence> tape;
    std::vector<std::unique_ptr<Pass>> passes;
    int most_full = 0;
    std::optional<OffloadStreams> offload;
  };
  class Scope;
  class PassGuard;

  Lane& lane(int replica) { return lanes_[static_cast<std::size_t>(replica)]; }
  void begin_forward(ShardedUnit& unit, bool by_hand, Lane& lane);
  void enter_forward(ShardedUnit& unit, int replica);
  void leave_forward(ShardedUnit& unit, int replica, std::uint64_t entered, bool may_keep, bool failed);
  void leave_backward(ShardedUnit& unit, int replica);
  int count_full(const ShardedUnit* computing, int replica);
  void post(ShardedUnit& unit, const ShardedUnit* computing, int replica);
  bool is_open(const ShardedUnit& unit, int replica);
  bool is_due(const Pass& pass, const ShardedUnit& unit, std::uint64_t reached) const;

  Pass& current_pass(int replica, std::uint64_t id);
  std::vector<Step> plan(const Lane& lane) const;
  void advance(Pass& pass, int replica, std::uint64_t position);
  void take_step(Pass& pass, int replica);
  bool keeps(const Pass& pass) const { return keeps_full_ && !(pass.synchronize && pass.all_reduce); }
  void open(Pass& pass, int replica, ShardedUnit& unit);
  void close(Pass& pass, int replica, ShardedUnit& unit, bool last);
  void reduce(Pass& pass, int replica, ShardedUnit& unit);
  void finish_scatter(Pass& pass, int replica);
  void finish_all_reduces(Pass& pass, int replica, std::size_t most);
  void finish(std::uint64_t id, int replica);
  void abandon(std::uint64_t id, int replica) noexcept;

  std::vector<ShardedUnit*> units_;
  std::vector<Lane> lanes_;
  std::atomic<bool> keeps_full_ = false;  // replicas that fail reset it, each on its thread
};

}  // namespace tapestry::distributed
