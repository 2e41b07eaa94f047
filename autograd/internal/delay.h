#pragma once
// Weight gradients that a backward pass computes while it waits for communication, which needs the gradient of
// a layer's input first (Megatron-LM: "delayed weight gradients").
//
// Of a node that is marked by delay_leaf_gradients(), a pass of backward() computes the gradients of leaves,
// and of casts of leaves, later, in the order of the nodes. Before a node that is marked by mark_wait(), it
// computes those that the wait before has left, and half of those that have come since, rounded up. At its end
// it computes the rest. So few of them keep memory, and a wait that comes soon after another one has something
// to hide behind. The order depends on the order of the nodes alone: leaves' hooks post collectives, and ranks
// with equal graphs post them in one order. Passes with create_graph, grad(), backward_inputs() and
// DetectAnomaly put off nothing.
#include "tapestry/core/tensor.h"

namespace tapestry::autograd {

/// Marks the node that has computed `result`. Does nothing if none was recorded. Its backward is called twice,
/// and computes what Backward::needs() asks for.
void delay_leaf_gradients(const Tensor& result);
void mark_wait(const Tensor& result);

}  // namespace tapestry::autograd
