#pragma once
#include <array>

#include "tapestry/nn/optim/optimizer.h"

namespace tapestry::optim {

struct AdamOptions {
  double lr = 1e-3;
  std::array<double, 2> betas = {0.9, 0.999};
  double eps = 1e-8;
  double weight_decay = 0;
  bool amsgrad = false, maximize = false;
  LowPrecision low_precision = LowPrecision::master;  ///< for f16 and bf16 parameters; not in state_dict()

  std::vector<OptionRef> refs() {
    return {{"lr", lr},
            {"beta1", betas[0]},
            {"beta2", betas[1]},
            {"eps", eps},
            {"weight_decay", weight_decay},
            {"amsgrad", amsgrad},
            {"maximize", maximize}};
  }
};

/// The same options as AdamOptions. The default weight decay is 0.01, as in PyTorch.
struct AdamWOptions {
  double lr = 1e-3;
  std::array<double, 2> betas = {0.9, 0.999};
  double eps = 1e-8;
  double weight_decay = 1e-2;
  bool amsgrad = false, maximize = false;
  LowPrecision low_precision = LowPrecision::master;  ///< for f16 and bf16 parameters; not in state_dict()

  std::vector<OptionRef> refs() {
    return {{"lr", lr},
            {"beta1", betas[0]},
            {"beta2", betas[1]},
            {"eps", eps},
            {"weight_decay", weight_decay},
            {"amsgrad", amsgrad},
            {"maximize", maximize}};
  }
};

namespace detail {
/// The common base of Adam and AdamW, which differ only in how the weight decays.
template <class O, bool kDecoupled>
class AdamBase : public OptimizerWith<O> {
 public:
  explicit AdamBase(std::vector<Parameter> params, const O& options = {}) {
    this->add_param_group({std::move(params), options});
  }
  explicit AdamBase(std::vector<ParamGroup<O>> groups) {
    for (auto& g : groups) this->add_param_group(std::move(g));
  }
  const char* name() const override { return kDecoupled ? "AdamW" : "Adam"; }
  bool supports_device_scaling() const override { return true; }

 protected:
  void check_options(std::size_t group) const override;
  std::vector<const char*> state_names() const override {
    return {"exp_avg", "exp_avg_sq", "max_exp_avg_sq"};
  }
  bool uses_state(std::size_t group, std::size_t index) const override {
    return index < 2 || this->options(group).amsgrad;
  }
  void update(std::size_t group, Device device, DType dtype, const kernels::StepItems& items) override;
};
extern template class AdamBase<AdamOptions, false>;
extern template class AdamBase<AdamWOptions, true>;
}  // namespace detail

/// Adam (Kingma and Ba, "Adam: a method for stochastic optimization", 2015).
class Adam : public detail::AdamBase<AdamOptions, false> {
 public:
  using AdamBase::AdamBase;
};

/// Adam with weight decay that is decoupled from the gradient (Loshchilov and Hutter, "Decoupled weight decay
/// regularization", 2019).
class AdamW : public detail::AdamBase<AdamWOptions, true> {
 public:
  using AdamBase::AdamBase;
};

}  // namespace tapestry::optim
