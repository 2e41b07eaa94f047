#pragma once
// ShardedDataParallel is fully_shard() in one process: the parameters of one model are divided among devices,
// and each device computes a part of the batch. It is to fully_shard() what DataParallel is to
// DistributedDataParallel.
//
//   GPT net(config);
//   distributed::ShardedDataParallel sharded(net, {"cuda:0", "cuda:1"}, {.units = net.blocks.children()});
//   optim::AdamW optimizer(net.parameters(), {.lr = 3e-4});  // steps each shard on its device
//   for (auto& [tokens, targets] : loader) {
//     optimizer.zero_grad();
//     sharded.loss(std::tie(tokens, targets), [&](const Tensor& x, const Tensor& y) {
//       return cross_entropy(net(x), y);  // runs on each device, on its part of the batch
//     }).backward();
//     optimizer.step();
//   }
//   nn::save_model("model.safetensors", net);
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tapestry/distributed/data_parallel/data_parallel.h"
#include "tapestry/distributed/fsdp/fsdp.h"
#include "tapestry/nn/optim/optimizer.h"

namespace tapestry::distributed {

class ShardedReplicas;

struct ShardedDataParallelOptions {
  /// Modules inside the model that become units of their own, such as its blocks, in any order. The model is
  /// the last unit. Without units, all parameters are gathered at once.
  std::vector<nn::Module*> units = {};
  /// For all units; see FsdpOptions. If nullopt, true for `units` and false for the model.
  std::optional<bool> reshard_after_forward = {};
  int max_full_units = 2;  ///< on each device; see FsdpOptions
  /// The transport between the devices, as in DataParallelOptions: "nccl", "local", or empty.
  std::string backend = {};
  /// Keeps shards, their gradients and the optimizer's state in pinned host memory, as FsdpOptions::offload.
  /// The optimizer then steps the shards of all devices one after another on the CPU's threads. Does nothing
  /// on CPU devices.
  bool offload = false;
  MixedPrecisionPolicy mixed_precision = {};  ///< of all units
};

/// The part of ShardedDataParallel that does not depend on the model's type. Use ShardedDataParallel.
class ShardedDataParallelBase : protected DataParallelBase {
 public:
  /// While it exists, the parameters of all units are full on every device, and the slots give the full
  /// tensors. In-place changes of the first replica's tensors, which the calling thread sees, are kept: every
  /// device takes over its rows.
  class Unsharded {
   public:
    explicit Unsharded(std::shared_ptr<ShardedReplicas> replicas);
    ~Unsharded();
    Unsharded(const Unsharded&) = delete;
    Unsharded& operator=(const Unsharded&) = delete;

   private:
    std::shared_ptr<ShardedReplicas> replicas_;
    std::vector<std::vector<std::shared_ptr<void>>> scopes_;  // [replica][unit]
  };

  using DataParallelBase::devices;
  using DataParallelBase::loss;

  /// See FullyShard: backward passes inside the scope leave whole gradients on every device.
  [[nodiscard]] NoSync no_sync() const;
  void discard_unreduced() const;
  /// Gathers all parameters on every device.
  [[nodiscard]] Unsharded unshard() const;

  /// Copies of the model's state_dict() on `device`.
  nn::StateDict whole_state_dict(Device device = kCPU) const;
  /// A copy of the optimizer's state_dict() on `device`. Throws ValueError if a device has state for a
  /// parameter and another has none.
  nn::StateDict whole_state_dict(const optim::Optimizer& optimizer, Device device = kCPU) const;

  /// What one device has done.
  FsdpReport report(int replica = 0) const;
  void reset_report() const;
  /// The parameters of each unit; the model is the last.
  std::vector<std::vector<std::string>> units() const;

 protected:
  ShardedDataParallelBase(nn::Module& model, DeviceList devices, const ShardedDataParallelOptions& options);
  ~ShardedDataParallelBase();

 private:
  explicit ShardedDataParallelBase(std::shared_ptr<ShardedReplicas> replicas);
  std::shared_ptr<ShardedReplicas> sharded_;
};

/// Divides the parameters of a model among devices. The rules for units, shards and gradients are those of
/// fully_shard(), with each device as a rank; the rules for batches, losses, outputs, buffers, random numbers
/// and hooks are those of DataParallel. The model may be on any device, such as in host memory, or on meta:
/// each device gets its rows, and only one unit at a time is whole.
///
/// A device for which the batch has no samples computes the first part again with weight 0, because the
/// others need its shards.
///
/// The model stays sharded when this object is destroyed, but can be called through this object only: all
/// devices must take part. Optimizers, nn::clip_grad_norm_(), AveragedModel and checkpoints know that the
/// slots have several shards: state_dict() puts them together, and load_state_dict() takes whole tensors.
/// Hooks on parameters see the shards of the first device.
///
/// If a replica throws, the others stop waiting for it, and the exception is rethrown with the device in its
/// text. Gradients are then incomplete: call zero_grad(). Everything remains usable.
template <class M>
class ShardedDataParallel : public ShardedDataParallelBase {
 public:
  using Options = ShardedDataParallelOptions;
  /// Throws before any change: ValueError if a unit is null, is not inside the model or named twice, the
  /// model is sharded or has replicas or a DistributedDataParallel, or an option is out of range; ValueError
  /// and DeviceError for devices as DataParallel does.
  explicit ShardedDataParallel(M& model, DeviceList devices = {}, const Options& options = {})
      : ShardedDataParallelBase(model, std::move(devices), options), model_(model) {}

  /// Calls model(args...) and gathers the results, as DataParallel does.
  template <class... Args>
  auto operator()(Args&&... args) {
    return this->call(model_, std::forward<Args>(args)...);
  }
  M& module() const { return model_; }

 private:
  M& model_;
};

}  // namespace tapestry::distributed
