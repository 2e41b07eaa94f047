#pragma once
// What the strategies in distributed/ ask the engine. DataParallel has a node whose backward runs backward
// passes over other graphs, one per replica, each on the worker of its device. fully_shard follows a pass, to
// gather parameters just before it needs them. The planner follows one to measure its memory.
#include <cstdint>
#include <functional>
#include <vector>

#include "tapestry/core/tensor.h"

namespace tapestry::autograd {

class GraphTask;

/// The backward pass in progress on this thread; null if there is none.
GraphTask* pass_in_progress();
/// In this scope, this thread's backward passes are nested in the pass `outer` of another thread, which waits
/// for them. Like a pass that a hook starts, they may use nodes of the outer pass, such as a leaf that both
/// graphs share. Only one thread at a time may have a scope for a pass. With null, passes are not nested.
class NestedScope {
 public:
  explicit NestedScope(GraphTask* outer);
  ~NestedScope();
  NestedScope(const NestedScope&) = delete;
  NestedScope& operator=(const NestedScope&) = delete;

 private:
  GraphTask* const before_;
};

/// The settings of the backward pass in progress on this thread, which the nested passes must use too.
struct NestedPass {
  bool retain_graph = false;  ///< keep the graph for another pass
  bool accumulates = false;   ///< true for backward(), which accumulates in leaves; false for grad()
};
/// The settings of the current pass. Throws AutogradError outside a backward pass, and in backward_inputs(),
/// because the engine cannot split a graph that it does not see.
NestedPass nested_pass();

/// Where the backward pass in progress on this thread is.
struct PassPosition {
  std::uint64_t id = 0;        ///< current_backward().id; 0 if no pass is in progress
  bool accumulates = false;    ///< true for backward(), which accumulates in leaves; false for grad()
  std::uint64_t position = 0;  ///< the nodes newer than this one have run; see GraphTask::position()
  /// The last node that the pass has come to. Nodes newer than this one have run, but for delayed weight
  /// gradients.
  std::uint64_t reached = 0;
};
PassPosition pass_position();
/// The numbers of the operations of the pass in progress on this thread; see GraphTask::sequences().
std::vector<std::uint64_t> pass_sequences();

/// In this scope, this thread's backward passes call `before` with the sequence number of each node, leaves
/// excepted, before its backward runs. Unlike a hook it leaves the pass as it is: a backward that reuses the
/// memory of its gradient still does so.
class NodeObserver {
 public:
  using Function = std::function<void(std::uint64_t sequence)>;
  explicit NodeObserver(Function before);
  ~NodeObserver();
  NodeObserver(const NodeObserver&) = delete;
  NodeObserver& operator=(const NodeObserver&) = delete;
  static const NodeObserver* current();

  const Function before;

 private:
  const NodeObserver* const outer_;
};

/// Gives `gradient` to a leaf as a backward pass does: its hooks run, and the gradient is added to grad(). It
/// becomes grad() without a copy if the caller passes the only reference to it.
void deliver_to_leaf(const Tensor& leaf, Tensor gradient);

}  // namespace tapestry::autograd
