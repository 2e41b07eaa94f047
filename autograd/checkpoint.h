#pragma once
// Activation checkpointing: saves memory at the price of time.
//
//   Tensor h = checkpoint(block1, x);  // instead of block1(x)
//   Tensor y = checkpoint(block2, h);
//
// The operations in a block save no tensors for backward. When backward first needs a saved tensor of the
// block, the block is recomputed from its inputs. Each recomputed tensor is freed when the operation that
// needs it has run its backward. A chain of blocks therefore needs the memory of the blocks' inputs and of
// one block, and takes about a third more time (Chen et al., "Training deep nets with sublinear memory cost",
// 2016). Hooks, grad(), several outputs, retain_graph and backward_inputs() work as without checkpointing.
#include <functional>
#include <memory>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "tapestry/autograd/engine.h"
#include "tapestry/core/structure.h"
#include "tapestry/core/tensor.h"

namespace tapestry {

struct CheckpointOptions {
  /// If true, fn draws the same random numbers in the recomputation, so that dropout has the same mask. The
  /// context's generator is rewound, or, if the context has none, the default generators of the devices of
  /// fn's inputs and saved tensors. If false, the default generators are not rewound: the masks differ and
  /// the gradients are wrong.
  bool preserve_rng_state = true;
  /// If true, the recomputation stops as soon as backward has all tensors that it needs. If false, fn runs to
  /// its end, and backward throws AutogradError if fn saves more tensors than in the forward pass.
  bool early_stop = true;
};

namespace autograd {

/// True while backward recomputes a checkpointed function on this thread. A function with side effects, such
/// as running statistics, must skip them then: `if (!autograd::recomputing()) ++batches;`
bool recomputing();

namespace impl {

/// A stored function call that can be repeated with other tensors as inputs.
class RepeatableCall {
 public:
  virtual ~RepeatableCall() = default;
  virtual void repeat(const std::vector<Tensor>& inputs) = 0;
};

class Recomputation;

/// In this scope, operations on this thread save tokens instead of tensors. Backward gets the tensors by
/// repeating `call`.
class CheckpointScope {
 public:
  CheckpointScope(std::unique_ptr<RepeatableCall> call, const std::vector<Tensor>& inputs,
                  const CheckpointOptions& options);
  ~CheckpointScope();

 private:
  std::shared_ptr<Recomputation> recomputation_;
  SavedTensorHooks hooks_;
};

template <class F, class... Args>
class CheckpointedCall final : public RepeatableCall {
 public:
  // A function object that cannot be copied, for example a module, is held by reference.
  using Function =
      std::conditional_t<std::is_lvalue_reference_v<F> && !std::is_copy_constructible_v<std::decay_t<F>>, F,
                         std::decay_t<F>>;

  explicit CheckpointedCall(F&& f, const std::remove_reference_t<Args>&... args)
      : fn(std::forward<F>(f)), args_(args...) {
    structure::for_each<Tensor>(args_,
                                [](Tensor& t) { t = Tensor(); });  // saved as inputs of the Recomputation
  }
  void repeat(const std::vector<Tensor>& inputs) override {
    std::tuple<std::decay_t<Args>...> args = args_;
    auto next = inputs.begin();
    structure::for_each<Tensor>(args, [&](Tensor& t) { t = *next++; });
    std::apply([&](auto&... a) { static_cast<void>(std::invoke(fn, static_cast<Args&&>(a)...)); }, args);
  }

  Function fn;

 private:
  std::tuple<std::decay_t<Args>...> args_;
};

}  // namespace impl
}  // namespace autograd

/// Returns fn(args...). Backward recomputes fn instead of saving the tensors that it needs. `fn` is any
/// callable with any result type. Parameters that fn reads get their gradients as usual. `fn` is copied; a
/// module cannot be copied, so it must live until backward. Tensors in the arguments are saved like the
/// inputs of an operation: through the caller's saved-tensor hooks, or with a check that they were not
/// changed in place. The tensors are found by structure::for_each: alone, in vectors, arrays, optionals,
/// pairs, tuples, maps and plain structs. Other arguments are copied.
///
/// The recomputation must do the same as the forward pass. It runs on the thread that runs backward, in the
/// context (device, replica, stream, generator) of the forward pass. It does not update the running
/// statistics of batch norms. Calls may be nested. If grad mode is off, checkpoint() only calls fn. Backward
/// throws AutogradError if the recomputation saves tensors of a different number, shape, dtype or device, or
/// if an input, or a parameter that an operation saves, was changed in place after the forward pass.
template <class F, class... Args>
auto checkpoint(CheckpointOptions options, F&& fn, Args&&... args) {
  using Call = autograd::impl::CheckpointedCall<F, Args...>;
  if (!grad_enabled()) return std::invoke(std::forward<F>(fn), std::forward<Args>(args)...);
  std::vector<Tensor> inputs;
  (structure::for_each<Tensor>(std::as_const(args), [&](const Tensor& t) { inputs.push_back(t); }), ...);
  auto call = std::make_unique<Call>(std::forward<F>(fn), args...);
  auto& held = call->fn;
  const autograd::impl::CheckpointScope scope(std::move(call), inputs, options);
  inputs.clear();
  return std::invoke(held, std::forward<Args>(args)...);
}
template <class F, class... Args>
requires std::is_invocable_v<F&, Args...>
auto checkpoint(F&& fn, Args&&... args) {
  return checkpoint(CheckpointOptions{}, std::forward<F>(fn), std::forward<Args>(args)...);
}

}  // namespace tapestry
