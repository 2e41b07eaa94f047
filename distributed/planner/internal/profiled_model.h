#pragma once
// A replica of the model on one device, whose training steps can be observed block by block.
#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tapestry/core/timeline.h"
#include "tapestry/distributed/planner/internal/divided_axes.h"
#include "tapestry/distributed/planner/planner.h"
#include "tapestry/nn/optim/optimizer.h"

namespace tapestry::distributed::planner {

/// Is notified of the phases of a training step.
class StepObserver {
 public:
  virtual ~StepObserver() = default;
  /// Called when forward or backward of block k begins, and when the optimizer step begins, with k = 0. The
  /// loss counts as block number count(). The phase before has ended.
  virtual void enter(Activity /*activity*/, std::size_t /*k*/) {}
  /// Called when forward of a block or of the loss has returned. Its input still has memory.
  virtual void computed() {}
  /// Called when a phase has ended and no other phase follows immediately.
  virtual void leave() {}
};

/// Records the phases as spans on the device's row of the timeline: "forward 0", "backward 3", "update 0".
class SpanObserver : public StepObserver {
 public:
  explicit SpanObserver(Device device) : device_(device) {}
  void enter(Activity activity, std::size_t k) override;
  void leave() override { span_.reset(); }

 private:
  Device device_;
  std::optional<SpanScope> span_;
};

/// Trains the whole model with one graph from the inputs to the loss, so that caches hold the same data as in
/// real training. Its steps must run on the device's worker or under a DeviceGuard.
class ProfiledModel {
 public:
  /// Throws ValueError if the model has no blocks, a block has no parameters, or the batch has not as many
  /// samples as the setup says.
  ProfiledModel(const Model& model, const TrainingSetup& setup, Device device);
  /// The model on one of the ranks that divide the layers along these axes, without peers: see
  /// divide_layers().
  ProfiledModel(const Model& model, const TrainingSetup& setup, Device device, const std::string& layers);

  Device device() const { return device_; }
  /// The number of blocks.
  std::size_t count() const { return blocks_.size(); }
  const Block& block(std::size_t k) const { return blocks_[k]; }
  /// The first n samples, on the device.
  Tensor inputs(std::int64_t n) const { return inputs_.narrow(0, 0, n); }
  Tensor targets(std::int64_t n) const { return targets_.narrow(0, 0, n); }
  Tensor loss(const Tensor& output, const Tensor& targets) const { return loss_function_(output, targets); }
  std::vector<nn::Parameter> parameters() const;
  std::int64_t parameter_bytes() const;
  /// Runs a forward of all blocks as a call of the whole model: divided layers then know how long the
  /// sequence is that they divide.
  void call(const std::function<void()>& forward);
  /// The axes that divide the layers.
  const std::vector<std::unique_ptr<DividedAxis>>& axes() const { return axes_; }
  /// What each axis sends in a step with n samples, in forward and in backward: by block, with the loss last.
  std::vector<std::array<std::vector<SentByLayers>, 2>> sent(std::int64_t n);

  /// The phases of a step with n samples, to be called in this order. Each returns when the device has
  /// finished. `observer` is notified during forward and the backward that follows. If `keep_gradients` is
  /// true, backward adds to the gradients of the step before. If `in_two` is true, backward_in_two() follows.
  void forward(std::int64_t n, StepObserver& observer, bool keep_gradients = false, bool in_two = false);
  void backward();
  /// The same for a step whose backward is split in two as in Schedule::zero_bubble. The first block has no
  /// gradient of its input, so its whole backward belongs to the second pass. Calls `begin_weights` between
  /// the two passes.
  void backward_in_two(const std::function<void()>& begin_weights);
  /// A whole step in which each block has a graph of its own, and takes the gradient of its output as a stage
  /// of a pipeline does.
  void step_by_block(std::int64_t n, StepObserver& observer);
  void update(StepObserver& observer);

 private:
  template <class F>
  void observed(const F& backward);
  Device device_;
  std::vector<Block> blocks_;
  std::shared_ptr<nn::Module> whole_;               // of divided layers
  std::vector<std::unique_ptr<DividedAxis>> axes_;  // the same
  std::unique_ptr<optim::Optimizer> optimizer_;
  Tensor inputs_, targets_;
  std::function<Tensor(const Tensor&, const Tensor&)> loss_function_;
  Tensor loss_;                       // the loss of the step in progress
  Tensor split_at_;                   // the output of the first block, if backward will be split in two
  std::vector<std::uint64_t> began_;  // the number of the first node of each block, and of the loss
  StepObserver* observer_ = nullptr;  // the observer of the step in progress
};

}  // namespace tapestry::distributed::planner
