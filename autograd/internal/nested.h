#pragma once
// For a node whose backward runs graphs of its own, as DataParallel's does: one a replica, each on its
// device's thread. Not in tapestry.h.

namespace tapestry::autograd {

/// What the pass in progress on this thread asks of them.
struct NestedPass {
  bool retain_graph = false;  ///< another pass may come
  bool accumulates = false;   ///< backward(): leaves get their gradients; false for grad()
};
/// Throws AutogradError outside a backward pass, and in one whose weight gradients are put off
/// (backward_inputs): graphs that the engine does not see cannot be split.
NestedPass nested_pass();

}  // namespace tapestry::autograd
