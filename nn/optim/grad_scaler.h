#pragma once
// Gradient scaling for training in f16, as torch.amp.GradScaler.
//
//   optim::GradScaler scaler;
//   ...
//   {
//     const AutocastGuard guard(DType::f16);
//     loss = cross_entropy(model(x), target);
//   }
//   scaler.scale(loss).backward();
//   scaler.step(optimizer);  // skips the step if a gradient is infinite or NaN
//   scaler.update();
//
// Gradients below 6e-8 are 0 in f16. The loss is multiplied by a scale, so that they stay above, and the
// gradients are divided by it before the step (Micikevicius et al., "Mixed precision training", 2018). If a
// gradient overflows, the step is skipped and the scale falls; after many good steps it rises. bf16 has the
// range of f32 and needs no scaler.
#include <cstdint>
#include <functional>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "tapestry/nn/optim/optimizer.h"

namespace tapestry::optim {

struct GradScalerOptions {
  double init_scale = 65536;            ///< the first scale
  double growth_factor = 2;             ///< the scale is multiplied by it after growth_interval good steps
  double backoff_factor = 0.5;          ///< and by this after a step with an infinity or NaN
  std::int64_t growth_interval = 2000;  ///< good steps in a row
  bool enabled = true;                  ///< false: scale() returns the loss, and step() is the optimizer's
  /// Called with found_inf, a 0-d f32 tensor, by each unscale_(), or step() without it, on all ranks. It is
  /// for ranks that hold different gradients, such as the stages of a pipeline, and must make found_inf the
  /// maximum over them:
  ///   [&](const Tensor& t) { group->all_reduce(t, distributed::ReduceOp::max).wait(); }
  /// Data-parallel ranks have the same gradients after the all-reduce, and so the same found_inf. The ranks
  /// of fully_shard and of divided gradients (ZeRO-2) agree without this function.
  std::function<void(const Tensor& found_inf)> agree = {};
};

/// Whether GradScaler::step() updated the parameters: false if a gradient was infinite or NaN. The answer
/// lies on the device, and the host waits for it in the conversion to bool only.
class ScaledStep {
 public:
  /// `found_inf` is undefined, or holds one number, which is 0 if the step was done.
  explicit ScaledStep(Tensor found_inf) : found_inf_(std::move(found_inf)) {}
  operator bool() const { return !found_inf_.defined() || found_inf_.item() == 0; }

 private:
  Tensor found_inf_;
};

class GradScaler {
 public:
  using Options = GradScalerOptions;
  /// Throws ValueError unless init_scale > 0, growth_factor > 1, 0 < backoff_factor < 1, growth_interval > 0.
  explicit GradScaler(const Options& options = {});

  /// Returns loss * scale. The first call puts the scale on the loss's device.
  Tensor scale(const Tensor& loss);
  std::vector<Tensor> scale(const std::vector<Tensor>& losses);
  /// Divides the optimizer's gradients by the scale, in place and in all replicas, and notes on the device
  /// whether one was infinite or NaN. Call it before the gradients are clipped or looked at; otherwise step()
  /// divides them by itself.
  /// Collective if parameters are sharded. Throws ValueError for f16 gradients, which would underflow, for a
  /// second call before update(), after step(), before scale(), and if no parameter has a gradient.
  void unscale_(Optimizer& optimizer);
  /// Steps unless a gradient is infinite or NaN. If the optimizer supports_device_scaling(), the device
  /// decides and the host does not wait; and without unscale_() before, the step divides the gradients as it
  /// reads them: grad() keeps the scale (PyTorch writes the quotients back, a pass that only a reader of
  /// grad() would need), and f16 gradients are allowed. For the other optimizers (Muon) the gradients are
  /// unscaled and the host waits. Collective if parameters are sharded. Throws as unscale_() does, and
  /// ValueError for a second call before update().
  ScaledStep step(Optimizer& optimizer);
  /// Sets the scale for the next iteration on the device, from what was found in the gradients of all
  /// optimizers; or to `new_scale`. Throws ValueError if no optimizer was unscaled or stepped, or if
  /// new_scale is not positive and finite.
  void update(std::optional<double> new_scale = {});

  /// The scale; 1 if the scaler is not enabled. The host waits for the device.
  double get_scale() const;
  /// 0-d f32 on the device: 1 if unscale_() or step() found an infinity or NaN in this optimizer's gradients,
  /// else 0. Undefined before both.
  Tensor found_inf(const Optimizer& optimizer) const;
  bool is_enabled() const { return options_.enabled; }
  const Options& options() const { return options_; }

  /// "scale", "growth_factor", "backoff_factor", "growth_interval" and "_growth_tracker", as in PyTorch.
  /// Empty if the scaler is not enabled. nn::Training keeps a scaler in checkpoints.
  StateDict state_dict() const;
  /// Throws ValueError if an entry is missing or is no number in its range, or if the scaler is not enabled
  /// and the dict is not empty. If it throws, nothing was loaded.
  void load_state_dict(const StateDict& dict);

 private:
  enum class Stage : std::uint8_t { ready, unscaled, stepped };
  struct PerOptimizer {
    Stage stage = Stage::ready;
    Tensor found_inf;
  };
  void check_scale(const char* caller) const;
  Tensor find_inf(Optimizer& optimizer, const char* caller, bool divide) const;

  Options options_;
  double start_ = 0;  // the scale and the count of good steps until scale() creates the tensors
  std::int64_t good_start_ = 0;
  Tensor scale_, good_steps_;  // 0-d f32 and 0-d i64, on the device of the loss
  std::unordered_map<const Optimizer*, PerOptimizer> optimizers_;
};

}  // namespace tapestry::optim
