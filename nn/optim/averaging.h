#pragma once
// Averages of a model's weights over training: exponential moving averages (EMA) and stochastic weight
// averaging (SWA; Izmailov et al., "Averaging weights leads to wider optima and better generalization",
// 2018).
//
//   optim::AveragedModel ema(net, {.avg_fn = optim::get_ema_avg(0.999)});
//   for (...) {
//     ...
//     optimizer.step();
//     ema.update_parameters();
//   }
//   {
//     const optim::AveragedModel::Scope scope = ema.use();   // net has the averaged weights in this block
//     optim::update_bn(loader, net, [&](const auto& batch) { net(batch.first); });
//     evaluate(net);
//   }
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "tapestry/nn/layers/norm.h"
#include "tapestry/nn/module.h"

namespace tapestry::optim {

/// Computes the new average from the old average, a weight of the model, and the number of models that have
/// been averaged so far. All tensors have one shape, dtype and device. The average of an f16 or bf16 weight
/// is f32, and so is the weight that the function gets.
using AverageFunction =
    std::function<Tensor(const Tensor& average, const Tensor& weight, std::int64_t num_averaged)>;

/// Returns average * decay + weight * (1 - decay). Throws ValueError unless decay lies in [0, 1].
AverageFunction get_ema_avg(double decay = 0.999);
/// Returns the mean of all models.
AverageFunction get_swa_avg();

struct AveragedModelOptions {
  AverageFunction avg_fn = get_swa_avg();
  bool use_buffers = false;  ///< also averages floating-point buffers; otherwise they are the model's own
};

/// Keeps an average of a model's parameters. A C++ module cannot be copied, so unlike in PyTorch the average
/// is not a module of its own: use() puts the averaged weights into the model for a while. The model must
/// outlive this object. Averages of f16 and bf16 weights are f32: their nearest values are put into the
/// model. Of a sharded parameter each rank keeps the average of its shard; weights that were sharded after
/// the AveragedModel was made are refused.
class AveragedModel {
 public:
  using Options = AveragedModelOptions;
  explicit AveragedModel(nn::Module& model, Options options = {});
  AveragedModel(const AveragedModel&) = delete;
  AveragedModel& operator=(const AveragedModel&) = delete;

  /// Adds the model's current weights to the average. The first call copies them. Call it after
  /// Optimizer::step(). A captured step may contain it if avg_fn is that of get_ema_avg() and the first call
  /// is before the capture. Throws ValueError while a Scope exists, and cuda::CaptureError for a capture
  /// otherwise.
  void update_parameters();
  std::int64_t n_averaged() const { return *n_averaged_; }

  /// While a Scope exists, the model has the averaged weights in all replicas. Then it gets its own weights
  /// back. If sharded parameters are whole (unshard()), the constructor and the destructor are collective,
  /// and the whole tensors get the averages too.
  class Scope {
   public:
    explicit Scope(AveragedModel& model) : model_(model) { model_.enter(); }
    ~Scope() { model_.leave(); }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    AveragedModel& model_;
  };
  /// Throws ValueError if nothing has been averaged, or if a Scope exists already.
  [[nodiscard]] Scope use() {
    check_use();
    return Scope(*this);
  }

  /// Returns n_averaged and, under "module." and their names in the model, the averaged tensors. Of the
  /// parameters of a ShardedDataParallel they are put together in host memory. Throws ValueError if a
  /// parameter is sharded over other ranks: save the model while use() lasts, with
  /// distributed::save_checkpoint().
  nn::StateDict state_dict() const;
  /// Restores a saved average. A sharded parameter takes its part of the whole tensor. Throws ValueError if
  /// names or shapes differ from the model's, or while a Scope exists. If it throws, nothing was loaded.
  void load_state_dict(const nn::StateDict& dict);

 private:
  struct Entry {
    std::string name;
    nn::TensorSlot slot;
    // One of each per replica of a sharded slot, otherwise one. The originals are the model's weights while a
    // Scope exists.
    std::vector<Tensor> averages, originals = {};
    Tensor weight(std::size_t i) const;
    void set_all(const std::vector<Tensor>& values) const;
  };
  void enter();
  void leave() noexcept;
  void check_use() const;
  void check_shapes() const;

  AverageFunction avg_fn_;
  std::vector<Entry> entries_;
  std::shared_ptr<std::int64_t> n_averaged_ = std::make_shared<std::int64_t>(0);  // replays count, too
  bool in_use_ = false;
};

namespace detail {
/// Prepares the BatchNorm layers of a model for update_bn(), and restores their options at its end.
class BatchNormUpdate {
 public:
  explicit BatchNormUpdate(nn::Module& model);
  ~BatchNormUpdate();
  BatchNormUpdate(const BatchNormUpdate&) = delete;
  BatchNormUpdate& operator=(const BatchNormUpdate&) = delete;
  bool empty() const { return momenta_.empty(); }

 private:
  nn::Module& model_;
  const bool was_training_;
  std::vector<std::pair<std::optional<double>*, std::optional<double>>> momenta_;
};
}  // namespace detail

/// Recomputes the running statistics of all BatchNorm layers for the current weights: their plain averages
/// over one pass through the batches. `run` is called with each batch and calls the model. The model is in
/// training mode and nothing is recorded for backward. Does nothing if the model has no BatchNorm layer with
/// running statistics.
template <class Batches, class Run>
void update_bn(Batches&& batches, nn::Module& model, const Run& run) {
  const detail::BatchNormUpdate update(model);
  if (update.empty()) return;
  const NoGradGuard no_grad;
  for (auto&& batch : batches) run(batch);
}

}  // namespace tapestry::optim
