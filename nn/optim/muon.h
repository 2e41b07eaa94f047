#pragma once
#include <array>

#include "tapestry/nn/optim/optimizer.h"

namespace tapestry::optim {

/// How Muon scales the learning rate for a weight of shape (out, in):
/// - original: by sqrt(max(1, out / in)), as in Jordan's implementation
/// - match_rms_adamw: by 0.2 sqrt(max(out, in)), which gives updates of AdamW's size (Liu et al., "Muon is
/// scalable
///   for LLM training", 2025)
/// - spectral_unclamped: by sqrt(out / in)
enum class AdjustLr : std::uint8_t { original, match_rms_adamw, spectral_unclamped };

struct MuonOptions {
  double lr = 1e-3;
  double weight_decay = 0.1;
  double momentum = 0.95;
  bool nesterov = true;
  /// The coefficients a, b, c of the iteration X <- a X + b (X X^T) X + c (X X^T)^2 X.
  std::array<double, 3> ns_coefficients = {3.4445, -4.7750, 2.0315};
  double eps = 1e-7;
  std::int64_t ns_steps = 5;
  AdjustLr adjust_lr_fn = AdjustLr::original;  ///< not part of state_dict()
  /// Iterates in bf16, as PyTorch does. If false, iterates in the parameter's dtype.
  bool bf16 = true;
  bool maximize = false;
  LowPrecision low_precision = LowPrecision::master;  ///< for f16 and bf16 parameters; not in state_dict()

  std::vector<OptionRef> refs() {
    return {{"lr", lr},
            {"weight_decay", weight_decay},
            {"momentum", momentum},
            {"nesterov", nesterov},
            {"ns_coefficient_a", ns_coefficients[0]},
            {"ns_coefficient_b", ns_coefficients[1]},
            {"ns_coefficient_c", ns_coefficients[2]},
            {"eps", eps},
            {"ns_steps", ns_steps},
            {"bf16", bf16},
            {"maximize", maximize}};
  }
};

/// Muon: momentum whose matrix is replaced by a nearby matrix with singular values close to 1, by a
/// Newton-Schulz iteration (Jordan et al., "Muon: an optimizer for hidden layers in neural networks", 2024).
/// It is for the 2-d weights of hidden layers. Throws ValueError if a parameter is not 2-d: train embeddings,
/// biases, norms and the last layer with AdamW. Throws ValueError too if a parameter is sharded, because the
/// iteration needs the whole matrix, and if low_precision is stochastic. The state is momentum_buffer. The
/// step has no fused kernel, and a captured CUDA graph keeps the learning rate with which it was captured.
class Muon : public OptimizerWith<MuonOptions> {
 public:
  explicit Muon(std::vector<Parameter> params, const Options& options = {});
  explicit Muon(std::vector<Group> groups);
  const char* name() const override { return "Muon"; }

 protected:
  void check_options(std::size_t group) const override;
  void check_param(const Parameter& param) const override;
  std::vector<const char*> state_names() const override { return {"momentum_buffer"}; }
  void update_tensors(std::size_t group, const nn::ReplicaDevice& replica_device,
                      const std::vector<Update>& updates) override;
};

}  // namespace tapestry::optim
