#pragma once
// The functions with which an operation records itself on the tape. In autograd/ops/<family>.cpp:
//
//   Tensor exp(const Tensor& x) {
//     Tensor y = ...;                                            // check, allocate, run the kernel
//     if (recording(x))
//       record(kExp, y, {&x}, [y = save_output(y)](Backward& b) { b.set(0, b.grad() * b.saved(y)); });
//     return y;
//   }
//
// The callable is the operation's backward. It runs in no-grad mode, may call any operation, and should
// compute only the gradients for which b.needs(i) is true.
//
// In a pass with create_graph, the backward of an operation that is Grad::twice runs in grad mode, so the
// operations that it calls on b.grad() and b.saved() record the gradients of the gradient. A backward that
// calls kernels, which record nothing, must compute the gradients by operations if b.create_graph() is true.
#include <initializer_list>
#include <span>

#include "tapestry/autograd/node.h"
#include "tapestry/autograd/op.h"

namespace tapestry::autograd {

/// True if an operation on these tensors must be recorded: grad mode is on, and one of the tensors needs a
/// gradient. Undefined tensors (optional inputs) are ignored.
template <class... Tensors>
bool recording(const Tensors&... inputs) {
  return grad_enabled() && ((inputs.defined() && needs_grad(inputs)) || ...);
}
bool recording(std::span<const Tensor> inputs);

namespace impl {
void connect(Edge* edges, std::span<const Tensor* const> inputs, const char* op);
void attach(NodeRef node, OutputSlot* output_slots, std::span<const Tensor* const> outputs);
/// A new tensor with the elements of t, of which `history` is the node and the output that produced it.
Tensor connected(const Tensor& t, const Edge& history);
}  // namespace impl

/// Creates a node for `op` that produces `outputs`. inputs[i] is the input of b.needs(i) and b.set(i, ...);
/// an undefined input gets no gradient. Outputs of integral dtype do not become part of the graph. `twice` is
/// that of the Op.
template <class F>
void record(const char* op, std::span<const Tensor* const> outputs, std::span<const Tensor* const> inputs,
            F backward, bool twice = false) {
  Edge* edges;
  OutputSlot* output_slots;
  NodeRef node = OpNode<F>::make(op, static_cast<std::uint32_t>(inputs.size()),
                                 static_cast<std::uint32_t>(outputs.size()), edges, output_slots,
                                 std::move(backward), twice);
  impl::connect(edges, inputs, op);
  impl::attach(std::move(node), output_slots, outputs);
}
template <class F>
void record(const Op& op, const Tensor& output, std::initializer_list<const Tensor*> inputs, F backward) {
  const Tensor* out = &output;
  record(op.name, std::span<const Tensor* const>(&out, 1),
         std::span<const Tensor* const>(inputs.begin(), inputs.size()), std::move(backward), op.twice);
}
/// For operations on a list of tensors (cat, stack).
template <class F>
void record(const Op& op, const Tensor& output, const std::vector<Tensor>& inputs, F backward) {
  std::vector<const Tensor*> in;
  in.reserve(inputs.size());
  for (const Tensor& t : inputs) in.push_back(&t);
  const Tensor* out = &output;
  record(op.name, std::span<const Tensor* const>(&out, 1), std::span<const Tensor* const>(in),
         std::move(backward), op.twice);
}

/// Marks the newly recorded `output` as a view of its input. After that, a recorded in-place change of the
/// view throws AutogradError, because it would make the history of the base wrong. After a recorded in-place
/// change of the base, any use of the view throws.
void mark_view(const Tensor& output);

/// Returns a second tensor with the same elements and history. A recorded in-place operation changes the
/// history of t, so it uses the alias as its input, which still has the old history.
Tensor alias(const Tensor& t);

/// Call before an in-place change of `target` with the operands `others`. Returns true if the change must be
/// recorded. Throws AutogradError if it must be recorded but cannot be, for example because `target` is a
/// leaf that requires gradients, or a view of a recorded tensor.
bool prepare_in_place(const Op& op, const Tensor& target, std::initializer_list<const Tensor*> others);
/// Completes a recorded in-place change. `result` was computed out of place from alias(target). Its elements
/// are copied to `target`, and `target` gets its history.
void finish_in_place(const Tensor& target, const Tensor& result);

}  // namespace tapestry::autograd
