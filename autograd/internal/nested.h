#pragma once
// Support for a node whose backward runs backward passes over other graphs. DataParallel has such a node: it
// runs one graph per replica, each on the worker of its device.

namespace tapestry::autograd {

/// The settings of the backward pass in progress on this thread, which the nested passes must use too.
struct NestedPass {
  bool retain_graph = false;  ///< keep the graph for another pass
  bool accumulates = false;   ///< true for backward(), which accumulates in leaves; false for grad()
};
/// The settings of the current pass. Throws AutogradError outside a backward pass, and in backward_inputs(),
/// because the engine cannot split a graph that it does not see.
NestedPass nested_pass();

}  // namespace tapestry::autograd
