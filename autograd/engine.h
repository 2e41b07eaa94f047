#pragma once
// The backward engine.
//
// The engine is iterative. It counts the dependencies of each node and runs the newest ready node first.
// Ready leaves run before all other nodes, so that a leaf's hook fires as soon as its gradient is complete,
// whatever the order of an operation's inputs. Unless retain_graph is set, saved tensors are freed as soon as
// their node has run. All nodes run on the calling thread, each in the context in which it was recorded.
// Several threads may run backward at the same time over graphs that share no node and no leaf; a shared one
// throws AutogradError.
#include <concepts>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <memory>
#include <vector>

#include "tapestry/core/clock.h"
#include "tapestry/core/tensor.h"

namespace tapestry::autograd {

/// Options of backward().
struct BackwardOptions {
  /// The gradients of the outputs: one for each, or none.
  std::vector<Tensor> grad_outputs = {};
  bool retain_graph = false;  ///< keep the saved tensors, so that another pass can use the graph
  /// Record the computation of the gradients, so that they have gradients themselves. The graph is kept, as
  /// with retain_graph. Before it computes anything, the pass throws AutogradError, which names the
  /// operation, if the backward of an operation cannot be recorded.
  bool create_graph = false;
};

/// Computes the gradients of the sum of `outputs`, weighted by `grad_outputs`, and adds them to grad() of all
/// leaves. The gradient of a one-element output may be omitted; it is then 1. Throws AutogradError if an
/// output was not recorded, if a graph is used a second time without retain_graph, if a saved tensor was
/// changed in place, or if a gradient has the wrong shape, dtype or device.
///
/// With create_graph, grad() of a leaf refers to the graph, and the graph to the leaf. This cycle keeps both
/// in memory until zero_grad() or another assignment replaces grad(). grad() below has no such cycle.
void backward(const std::vector<Tensor>& outputs, const BackwardOptions& options);
/// The same, and saves memory if the caller moves the outputs and their gradients into the call. The pass
/// then frees an output that backward does not need, and frees a gradient or writes into its memory once it
/// has used it.
void backward(std::vector<Tensor> outputs, std::vector<Tensor> grad_outputs, bool retain_graph);
// A std::vector parameter would make `{.create_graph = true}` ambiguous.
inline void backward(const std::vector<Tensor>& outputs, std::initializer_list<Tensor> grad_outputs = {}) {
  backward(outputs, std::vector<Tensor>(grad_outputs), false);
}
template <std::same_as<std::vector<Tensor>> Tensors>
void backward(const std::vector<Tensor>& outputs, const Tensors& grad_outputs) {
  backward(outputs, grad_outputs, false);
}

/// Options of grad(). The first three are those of backward().
struct GradOptions {
  std::vector<Tensor> grad_outputs = {};
  bool retain_graph = false, create_graph = false;
  bool allow_unused = false;  ///< an input that the outputs do not depend on gets an undefined gradient
};

/// Returns the gradients of `outputs` with respect to `inputs`, which need not be leaves, and changes no
/// grad(). If the outputs do not depend on an input, its gradient is an undefined tensor with allow_unused;
/// otherwise grad() throws AutogradError.
std::vector<Tensor> grad(const std::vector<Tensor>& outputs, const std::vector<Tensor>& inputs,
                         const GradOptions& options);
std::vector<Tensor> grad(const std::vector<Tensor>& outputs, const std::vector<Tensor>& inputs,
                         const std::vector<Tensor>& grad_outputs, bool retain_graph,
                         bool allow_unused = false);
inline std::vector<Tensor> grad(const std::vector<Tensor>& outputs, const std::vector<Tensor>& inputs,
                                std::initializer_list<Tensor> grad_outputs = {}) {
  return grad(outputs, inputs, std::vector<Tensor>(grad_outputs), false);
}
template <std::same_as<std::vector<Tensor>> Tensors>
std::vector<Tensor> grad(const std::vector<Tensor>& outputs, const std::vector<Tensor>& inputs,
                         const Tensors& grad_outputs) {
  return grad(outputs, inputs, grad_outputs, false);
}

/// The second half of a split backward pass: the gradients of the weights. See backward_inputs().
class WeightGradients {
 public:
  WeightGradients();
  ~WeightGradients();
  WeightGradients(WeightGradients&&) noexcept;
  WeightGradients& operator=(WeightGradients&&) noexcept;
  /// Computes the gradients that backward_inputs() postponed, adds them to grad() of the leaves, fires the
  /// leaves' hooks, and frees the graph. A second call throws AutogradError.
  void accumulate();

  struct Impl;

 private:
  friend std::vector<Tensor> backward_inputs(std::vector<Tensor>, const std::vector<Tensor>&,
                                             std::vector<Tensor>, WeightGradients&);
  std::unique_ptr<Impl> impl_;
};

/// The first half of a split backward pass: returns the gradients with respect to `inputs` only.
/// `weights.accumulate()` later computes the gradients of all other leaves. A pipeline calls it when it would
/// otherwise be idle (Qi et al., "Zero bubble pipeline parallelism", 2023). Both halves together give the
/// same gradients as backward().
std::vector<Tensor> backward_inputs(std::vector<Tensor> outputs, const std::vector<Tensor>& inputs,
                                    std::vector<Tensor> grad_outputs, WeightGradients& weights);

/// Runs `callback` at the end of the backward pass in progress on this thread, before backward() returns. For
/// use in hooks. Throws AutogradError outside a backward pass.
void on_backward_end(std::function<void()> callback);

/// A backward pass in progress.
struct BackwardPass {
  std::uint64_t id = 0;  ///< unique among all passes of the process
  std::chrono::steady_clock::time_point began;
};
/// The backward pass in progress on this thread. For use in hooks. Throws AutogradError outside a backward
/// pass.
BackwardPass current_backward();
/// True if `leaf` is part of the backward pass in progress on this thread. A leaf that is not part of it gets
/// no gradient from this pass. Throws AutogradError outside a backward pass.
bool backward_reaches(const Tensor& leaf);

/// In this scope, each tensor that an operation of this thread saves for backward is passed to `pack`, and
/// the tape keeps only the result of `pack`. When backward needs the tensor, it passes that result to
/// `unpack`. Use it to keep saved tensors elsewhere (host memory, a file) or to recompute them. The
/// counterpart of torch.autograd.graph.saved_tensors_hooks.
class SavedTensorHooks {
 public:
  using Pack = std::function<std::shared_ptr<void>(const Tensor&)>;
  using Unpack = std::function<Tensor(const std::shared_ptr<void>&)>;
  SavedTensorHooks(Pack pack, Unpack unpack);
  ~SavedTensorHooks();
  SavedTensorHooks(const SavedTensorHooks&) = delete;
  SavedTensorHooks& operator=(const SavedTensorHooks&) = delete;

  const Pack pack;
  const Unpack unpack;
  static SavedTensorHooks* current();

 private:
  SavedTensorHooks* outer_;
};

/// In this scope, recorded operations of this thread check their outputs for NaN, and backward checks all
/// gradients. The first NaN throws AutogradError, which names the operation. Slow; use it only to find bugs.
class DetectAnomaly {
 public:
  DetectAnomaly();
  ~DetectAnomaly();
  DetectAnomaly(const DetectAnomaly&) = delete;
  DetectAnomaly& operator=(const DetectAnomaly&) = delete;
  static bool active();

 private:
  bool outer_;
};

}  // namespace tapestry::autograd
