#pragma once
// Running the tape backwards.
//
// Iterative; counts dependencies; runs the newest ready node first and leaves before everything else, so that
// a leaf's hook fires the moment its gradient is complete, whatever the order of an operation's inputs. Saved
// tensors are freed as it goes unless retain_graph. Everything runs on the calling thread, each node in the
// context in which it was recorded. Threads may run passes at once over graphs that share nothing; sharing a
// node, or a leaf that both would accumulate in, is an AutogradError.
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "tapestry/core/tensor.h"

namespace tapestry::autograd {

/// Adds the gradients of the sum of `outputs` (weighted by `grad_outputs`, which may be left out for
/// one-element outputs) to grad() of all leaves. Throws AutogradError: an output was not recorded; a graph
/// was used a second time without retain_graph; a saved tensor was changed in place; a gradient of a wrong
/// shape, dtype or device.
void backward(const std::vector<Tensor>& outputs, const std::vector<Tensor>& grad_outputs = {},
              bool retain_graph = false);

/// Returns the gradients of `outputs` with respect to `inputs` (leaves or not) and touches no grad(). An
/// input that the outputs do not depend on is an error, or with allow_unused gives an undefined tensor.
std::vector<Tensor> grad(const std::vector<Tensor>& outputs, const std::vector<Tensor>& inputs,
                         const std::vector<Tensor>& grad_outputs = {}, bool retain_graph = false,
                         bool allow_unused = false);

/// The second half of a backward pass that was split: the gradients of the weights.
class WeightGradients {
 public:
  WeightGradients();
  ~WeightGradients();
  WeightGradients(WeightGradients&&) noexcept;
  WeightGradients& operator=(WeightGradients&&) noexcept;
  /// Adds them to grad() of the leaves, fires their hooks, frees the graph. Once; AutogradError the second
  /// time.
  void accumulate();

  struct Impl;

 private:
  friend std::vector<Tensor> backward_inputs(const std::vector<Tensor>&, const std::vector<Tensor>&,
                                             const std::vector<Tensor>&, WeightGradients&);
  std::unique_ptr<Impl> impl_;
};

/// The first half: gradients with respect to `inputs` only. The gradients of every other leaf are left for
/// `weights.accumulate()`, which a pipeline runs when it would idle (Qi et al., "Zero bubble pipeline
/// parallelism", 2023). Together they give what backward() gives.
std::vector<Tensor> backward_inputs(const std::vector<Tensor>& outputs, const std::vector<Tensor>& inputs,
                                    const std::vector<Tensor>& grad_outputs, WeightGradients& weights);

/// Runs `callback` when the backward pass in progress on this thread has ended, before backward() returns.
/// Call it from a hook. Throws AutogradError outside a backward pass.
void on_backward_end(std::function<void()> callback);

/// The backward pass in progress on this thread, as a hook sees it.
struct BackwardPass {
  std::uint64_t id = 0;  ///< another one for every pass of the process
  std::chrono::steady_clock::time_point began;
};
/// Throws AutogradError outside a backward pass.
BackwardPass current_backward();
/// True if the pass in progress on this thread comes to `leaf`, or has been there: what is reached by none of
/// its nodes gets no gradient. Throws AutogradError outside a backward pass.
bool backward_reaches(const Tensor& leaf);

/// While one lives on a thread, tensors saved for backward go through `pack`, and what it returned through
/// `unpack` when backward asks: to keep them elsewhere (host memory, a file) or to recompute them.
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

/// While one lives on a thread, every recorded operation checks its output, and every backward its gradients,
/// and the first NaN is an AutogradError that names the operation. Slow: for finding bugs.
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
