#pragma once
// How an operation records itself. In autograd/ops/<family>.cpp:
//
//   Tensor exp(const Tensor& x) {
//     Tensor y = ...;                                            // check, allocate, run the kernel
//     if (recording(x))
//       record(kExp, y, {&x}, [y = save_output(y)](Backward& b) { b.set(0, b.grad() * b.saved(y)); });
//     return y;
//   }
//
// A backward runs with recording switched off, may call any operation, and computes only what b.needs(i) asks
// for.
#include <initializer_list>
#include <span>

#include "tapestry/autograd/node.h"
#include "tapestry/autograd/op.h"

namespace tapestry::autograd {

/// True if an operation on these tensors has to be recorded: grad mode is on and one of them needs a
/// gradient. Undefined tensors (optional inputs) count as not needing one.
template <class... Tensors>
bool recording(const Tensors&... inputs) {
  return grad_enabled() && ((inputs.defined() && needs_grad(inputs)) || ...);
}
bool recording(std::span<const Tensor> inputs);

namespace detail {
void connect(Edge* edges, std::span<const Tensor* const> inputs, const char* op);
void attach(NodeRef node, OutputSlot* slots, std::span<const Tensor* const> outputs);
}  // namespace detail

/// Appends a node for `op` and makes it the producer of `outputs`. Inputs may be undefined (no gradient
/// then); their order is that of b.needs(i) and b.set(i, ...). Outputs of integral dtype are not part of the
/// graph.
template <class F>
void record(const char* op, std::span<const Tensor* const> outputs, std::span<const Tensor* const> inputs,
            F backward) {
  Edge* edges;
  OutputSlot* slots;
  NodeRef node =
      OpNode<F>::make(op, static_cast<std::uint32_t>(inputs.size()),
                      static_cast<std::uint32_t>(outputs.size()), edges, slots, std::move(backward));
  detail::connect(edges, inputs, op);
  detail::attach(std::move(node), slots, outputs);
}
template <class F>
void record(const Op& op, const Tensor& output, std::initializer_list<const Tensor*> inputs, F backward) {
  const Tensor* out = &output;
  record(op.name, std::span<const Tensor* const>(&out, 1),
         std::span<const Tensor* const>(inputs.begin(), inputs.size()), std::move(backward));
}
/// For a list of tensors as the input (cat, stack).
template <class F>
void record(const Op& op, const Tensor& output, const std::vector<Tensor>& inputs, F backward) {
  std::vector<const Tensor*> in;
  in.reserve(inputs.size());
  for (const Tensor& t : inputs) in.push_back(&t);
  const Tensor* out = &output;
  record(op.name, std::span<const Tensor* const>(&out, 1), std::span<const Tensor* const>(in),
         std::move(backward));
}

/// Marks `output`, just recorded, as a view of its input: an in-place change of either that the tape records
/// makes the other's history wrong, and is refused.
void mark_view(const Tensor& output);

/// Another handle on the same elements and the same history, so that a recorded in-place operation can keep
/// the old history of the tensor that it changes.
Tensor alias(const Tensor& t);

/// Before an in-place change of `target`: throws AutogradError on a leaf that requires gradients, and where
/// recording on a view of the graph. Returns true if the change has to be recorded.
bool prepare_in_place(const Op& op, const Tensor& target, std::initializer_list<const Tensor*> others);
/// Ends a recorded in-place change: copies `result`, which was computed out of place from alias(target), over
/// target's elements and gives target result's history.
void finish_in_place(const Tensor& target, const Tensor& result);

}  // namespace tapestry::autograd
