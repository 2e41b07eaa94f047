#pragma once
// Weight gradients that a backward pass computes while it waits for communication, which needs the gradient
// of a layer's input first (Megatron-LM: "delayed weight gradients").
//
// Of a node that is marked by delay_leaf_gradients(), a pass of backward() computes some gradients later, in
// the order of the nodes: those of leaves, and of results of one operation whose only input is a leaf, such
// as a cast or a view. Before a node that is marked by mark_wait(), it computes those that the wait before
// has left, and half of those that have come since, rounded up. At its end it computes the rest. Few of them
// are kept at a time, and a wait that comes soon after another one has something to hide behind. The order
// depends on the order of the nodes alone: leaves' hooks post collectives, and ranks with equal graphs post
// them in one order. Passes with create_graph, grad(), backward_inputs() and DetectAnomaly put off nothing.
#include "tapestry/core/tensor.h"

namespace tapestry::autograd {

/// Marks the node that has computed `result`. Does nothing if none was recorded. Its backward is called
/// twice, and computes what Backward::needs() asks for.
void delay_leaf_gradients(const Tensor& result);
void mark_wait(const Tensor& result);

}  // namespace tapestry::autograd
