#pragma once
// The model on one device, whose steps can be watched from block to block. What predictions rest on is
// measured of it.
#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "tapestry/apps/compare/models.h"
#include "tapestry/apps/compare/workload.h"
#include "tapestry/core/timeline.h"
#include "tapestry/nn/optim/sgd.h"

namespace apps::compare {

/// Is told what a step does.
class Watcher {
 public:
  virtual ~Watcher() = default;
  /// It begins forward or backward of block k, or of the loss, k being the number of blocks; or the
  /// optimizer's step, k being 0. What was before has ended.
  virtual void enter(tapestry::Activity /*activity*/, std::size_t /*k*/) {}
  /// It has ended, and nothing of the step follows at once.
  virtual void leave() {}
};

/// Makes spans of it on the device's row: "forward 0", "backward 3", "update 0".
class SpanWatcher : public Watcher {
 public:
  explicit SpanWatcher(tapestry::Device device) : device_(device) {}
  void enter(tapestry::Activity activity, std::size_t k) override;
  void leave() override { span_.reset(); }

 private:
  tapestry::Device device_;
  std::optional<tapestry::SpanScope> span_;
};

/// Trained as by mode `single`, with one graph from the images to the loss: a layer finds in the caches what
/// it finds there in earnest.
class WatchedModel {
 public:
  WatchedModel(const Workload& workload, tapestry::Device device);

  tapestry::Device device() const { return device_; }
  std::size_t count() const { return blocks_.size(); }
  const Block& block(std::size_t k) const { return blocks_[k]; }
  tapestry::Tensor images(std::int64_t n) const { return batch_.images.narrow(0, 0, n); }
  tapestry::Tensor labels(std::int64_t n) const { return batch_.labels.narrow(0, 0, n); }
  std::vector<tapestry::nn::Parameter> parameters() const;
  std::int64_t parameter_bytes() const;

  /// The three parts of a step with n samples, in this order. They return when the device is done. The
  /// watcher of forward is backward's too. Backward adds to the gradients of the step before if those are
  /// kept.
  void forward(std::int64_t n, Watcher& watcher, bool keep_gradients = false);
  void backward();
  void update(Watcher& watcher);

 private:
  tapestry::Device device_;
  std::vector<Block> blocks_;
  tapestry::optim::SGD optimizer_;
  Batch batch_;
  tapestry::Tensor loss_;
  Watcher* watcher_ = nullptr;  // of the step in progress
};

}  // namespace apps::compare
