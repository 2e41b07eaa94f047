#pragma once
// Captured steps: a training step is recorded once as a CUDA graph and then replayed by one call, without the
// host's work for each operation.
//
//   Tensor x = zeros({128, 784}, "cuda:0"), target = zeros({128}, {DType::i64, "cuda:0"});
//   Tensor loss;
//   auto step = cuda::capture([&] {
//     optimizer.zero_grad();
//     loss = cross_entropy(net(x), target);
//     loss.backward();
//     optimizer.step();
//   });
//   for (const auto& [images, labels] : loader) {
//     x.copy_(images), target.copy_(labels);
//     step();             // one launch
//     scheduler.step();
//   }
#include <cstdint>
#include <functional>
#include <memory>

#include "tapestry/core/cuda/device.h"

namespace tapestry::cuda {

/// The step that capture() was to record does something that a CUDA graph cannot repeat. The message names
/// the operation. The capture is discarded, and the device stays usable.
class CaptureError : public DeviceError {
 public:
  using DeviceError::DeviceError;
};

struct CaptureOptions {
  /// How often capture() runs the step before it records it. These are ordinary steps: they train. They
  /// create what only the first steps create, such as the optimizer's state and the workspaces of libraries.
  int warm_up = 3;
  /// The device that runs the step.
  Device device = {DeviceType::cuda, 0};
};

/// A recorded step. Movable. Its destructor waits for the device.
class CapturedStep {
 public:
  CapturedStep(CapturedStep&&) noexcept;
  CapturedStep& operator=(CapturedStep&&) noexcept;
  ~CapturedStep();

  /// Runs the recorded work on the device's current stream, asynchronously to the host. Random numbers
  /// continue the generator's stream, and learning rates, momenta and gradient scales are those that the
  /// optimizers have now, so that a replay computes bit for bit what the step would compute. Throws
  /// ValueError if the object was moved from, or an optimizer of the step no longer exists. An index out of
  /// range that the step finds is reported when the host next waits, as without a graph.
  void replay();
  void operator()() { replay(); }
  /// The number of the graph's nodes: kernels and copies.
  std::int64_t nodes() const;

 private:
  struct Graph;
  explicit CapturedStep(std::unique_ptr<Graph> graph);
  friend CapturedStep capture(const std::function<void()>& step, const CaptureOptions& options);
  std::unique_ptr<Graph> graph_;
};

/// Runs `step` `warm_up` times, then runs it once more without computing anything and records its kernels and
/// copies. The rules are those of PyTorch's torch.cuda.CUDAGraph:
///
/// - A replay uses the memory of the capture. Keep the input tensors alive and copy new data into them; do
///   not replace them. The same holds for parameters. The tensors that the step has assigned, such as `loss`,
///   get new values with each replay; clone() what the next replay must not overwrite.
/// - A replay repeats work on the device only. The host's part of the step (printing, counters, a scheduler's
///   step()) runs in the capture and never again: keep it outside.
/// - All work runs on one stream of `device`. Every shape, and every branch, is that of the capture.
/// - Memory that the step allocates belongs to the graph while it exists, and nobody else gets it.
/// - The gradients and the optimizer's state must exist when the recorded run needs them: with `warm_up` = 0,
///   run the step at least once yourself.
///
/// Throws CaptureError if the step reads a value on the host (item(), cpu(), the bool of a ScaledStep), waits
/// for the device, uses events or other streams, computes on a CPU or on another device, draws numbers of a
/// generator other than current_generator(device), calls a collective, or creates an optimizer's state, or
/// uses an operation whose result's shape depends on values (nonzero(), unique(), a mask as an index);
/// DeviceError if there is no such device or TAPESTRY_CUDA_ALLOCATOR is "system"; ValueError if `warm_up` is
/// negative, `step` is empty, or a capture is running already. What `step` itself throws passes through.
/// After any exception the device can be used, and random numbers are those without the capture.
CapturedStep capture(const std::function<void()>& step, const CaptureOptions& options = {});

}  // namespace tapestry::cuda
