#pragma once
// Activation checkpointing: memory bought with time.
//
//   Tensor h = checkpoint(block1, x);  // instead of block1(x)
//   Tensor y = checkpoint(block2, h);
//
// The operations in a block keep nothing for backward. When backward first asks for something, the block is
// computed again from its inputs, and what its operations would keep then answers, each tensor until the
// operation that needed it has run its backward. A chain of blocks so takes the memory of their inputs and of
// one block, and about a third more time (Chen et al., "Training deep nets with sublinear memory cost",
// 2016). Backward itself is the ordinary one: hooks, grad(), several outputs, retain_graph and
// backward_inputs() are as ever.
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
  /// Gives fn the same random numbers when it is computed again, so that dropout has the same mask: those of
  /// the context's generator, or of the default generators of the devices that its inputs and what it saves
  /// are on. Off, it draws new ones of the latter, and gradients are those of neither computation.
  bool preserve_rng_state = true;
  /// Stops as soon as the last tensor that backward needs is there. Off, fn runs to its end, and it is also
  /// an error if it saves more tensors than the first time.
  bool early_stop = true;
};

namespace autograd {

/// True while checkpoint() computes a function again on this thread. What a forward does beyond its result
/// (statistics, counters) is done already: `if (!autograd::recomputing()) ++batches;`
bool recomputing();

namespace detail {

/// A call that can be made again, with other tensors of the same kind.
class RepeatableCall {
 public:
  virtual ~RepeatableCall() = default;
  virtual void repeat(const std::vector<Tensor>& inputs) = 0;
};

class Recomputation;

/// While one lives, what operations of this thread save for backward is left to a repetition of `call`.
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
  // What cannot be copied, as a module, is referred to.
  using Function =
      std::conditional_t<std::is_lvalue_reference_v<F> && !std::is_copy_constructible_v<std::decay_t<F>>, F,
                         std::decay_t<F>>;

  explicit CheckpointedCall(F&& f, const std::remove_reference_t<Args>&... args)
      : fn(std::forward<F>(f)), args_(args...) {
    structure::for_each<Tensor>(args_, [](Tensor& t) { t = Tensor(); });  // kept apart
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

}  // namespace detail
}  // namespace autograd

/// fn(args...), computed again in backward instead of keeping what backward needs. `fn` is anything that can
/// be called, and returns anything; parameters that it reads get their gradients as ever. It is copied,
/// except that a module, which cannot be, must live until backward. Tensors in the arguments, wherever
/// structure::for_each finds them (alone, in vectors, arrays, optionals, pairs, tuples, maps, plain structs),
/// are kept as an operation keeps its inputs: through the saved-tensor hooks of the caller, and with a check
/// that nothing changed them in place. Other arguments are copied.
///
/// The second time, fn must do what it did the first time. It runs in the context of the first (device,
/// replica, stream, generator), on the thread that runs backward; running statistics of batch norms are left
/// alone. Calls may be nested. Without grad mode it is a plain call. Backward throws AutogradError where fn
/// saved tensors of other shapes, dtypes, devices or number, and where an input, or a parameter that
/// an operation saves, was changed in place since.
template <class F, class... Args>
auto checkpoint(CheckpointOptions options, F&& fn, Args&&... args) {
  using Call = autograd::detail::CheckpointedCall<F, Args...>;
  if (!grad_enabled()) return std::invoke(std::forward<F>(fn), std::forward<Args>(args)...);
  std::vector<Tensor> inputs;
  (structure::for_each<Tensor>(std::as_const(args), [&](const Tensor& t) { inputs.push_back(t); }), ...);
  auto call = std::make_unique<Call>(std::forward<F>(fn), args...);
  auto& held = call->fn;
  const autograd::detail::CheckpointScope scope(std::move(call), inputs, options);
  inputs.clear();
  return std::invoke(held, std::forward<Args>(args)...);
}
template <class F, class... Args>
requires std::is_invocable_v<F&, Args...>
auto checkpoint(F&& fn, Args&&... args) {
  return checkpoint(CheckpointOptions{}, std::forward<F>(fn), std::forward<Args>(args)...);
}

}  // namespace tapestry
