#pragma once
// Optimizers with a learning rate per element, and Lion. Options, defaults and names of states are PyTorch's.
// Each step runs one fused kernel over all parameters; kernels/ops/optim_rules.h has the formulas.
#include <array>

#include "tapestry/nn/optim/optimizer.h"

namespace tapestry::optim {

struct RMSpropOptions {
  double lr = 1e-2;
  double alpha = 0.99;
  double eps = 1e-8;
  double weight_decay = 0;
  double momentum = 0;
  bool centered = false, maximize = false;
  LowPrecision low_precision = LowPrecision::master;  ///< for f16 and bf16 parameters; not in state_dict()

  std::vector<OptionRef> refs() {
    return {{"lr", lr},
            {"alpha", alpha},
            {"eps", eps},
            {"weight_decay", weight_decay},
            {"momentum", momentum},
            {"centered", centered},
            {"maximize", maximize}};
  }
};

struct AdagradOptions {
  double lr = 1e-2;
  double lr_decay = 0;
  double weight_decay = 0;
  double initial_accumulator_value = 0;
  double eps = 1e-10;
  bool maximize = false;
  LowPrecision low_precision = LowPrecision::master;  ///< for f16 and bf16 parameters; not in state_dict()

  std::vector<OptionRef> refs() {
    return {{"lr", lr},
            {"lr_decay", lr_decay},
            {"weight_decay", weight_decay},
            {"initial_accumulator_value", initial_accumulator_value},
            {"eps", eps},
            {"maximize", maximize}};
  }
};

struct AdadeltaOptions {
  double lr = 1;
  double rho = 0.9;
  double eps = 1e-6;
  double weight_decay = 0;
  bool maximize = false;
  LowPrecision low_precision = LowPrecision::master;  ///< for f16 and bf16 parameters; not in state_dict()

  std::vector<OptionRef> refs() {
    return {{"lr", lr}, {"rho", rho}, {"eps", eps}, {"weight_decay", weight_decay}, {"maximize", maximize}};
  }
};

struct AdamaxOptions {
  double lr = 2e-3;
  std::array<double, 2> betas = {0.9, 0.999};
  double eps = 1e-8;
  double weight_decay = 0;
  bool maximize = false;
  LowPrecision low_precision = LowPrecision::master;  ///< for f16 and bf16 parameters; not in state_dict()

  std::vector<OptionRef> refs() {
    return {{"lr", lr},
            {"beta1", betas[0]},
            {"beta2", betas[1]},
            {"eps", eps},
            {"weight_decay", weight_decay},
            {"maximize", maximize}};
  }
};

struct NAdamOptions {
  double lr = 2e-3;
  std::array<double, 2> betas = {0.9, 0.999};
  double eps = 1e-8;
  double weight_decay = 0;
  double momentum_decay = 4e-3;
  bool decoupled_weight_decay = false, maximize = false;
  LowPrecision low_precision = LowPrecision::master;  ///< for f16 and bf16 parameters; not in state_dict()

  std::vector<OptionRef> refs() {
    return {{"lr", lr},
            {"beta1", betas[0]},
            {"beta2", betas[1]},
            {"eps", eps},
            {"weight_decay", weight_decay},
            {"momentum_decay", momentum_decay},
            {"decoupled_weight_decay", decoupled_weight_decay},
            {"maximize", maximize}};
  }
};

struct RAdamOptions {
  double lr = 1e-3;
  std::array<double, 2> betas = {0.9, 0.999};
  double eps = 1e-8;
  double weight_decay = 0;
  bool decoupled_weight_decay = false, maximize = false;
  LowPrecision low_precision = LowPrecision::master;  ///< for f16 and bf16 parameters; not in state_dict()

  std::vector<OptionRef> refs() {
    return {{"lr", lr},
            {"beta1", betas[0]},
            {"beta2", betas[1]},
            {"eps", eps},
            {"weight_decay", weight_decay},
            {"decoupled_weight_decay", decoupled_weight_decay},
            {"maximize", maximize}};
  }
};

/// PyTorch has no Lion. The defaults are those of the authors' implementation (google/automl).
struct LionOptions {
  double lr = 1e-4;
  std::array<double, 2> betas = {0.9, 0.99};
  double weight_decay = 0;  ///< decoupled from the gradient, as in AdamW
  bool maximize = false;
  LowPrecision low_precision = LowPrecision::master;  ///< for f16 and bf16 parameters; not in state_dict()

  std::vector<OptionRef> refs() {
    return {{"lr", lr},
            {"beta1", betas[0]},
            {"beta2", betas[1]},
            {"weight_decay", weight_decay},
            {"maximize", maximize}};
  }
};

namespace detail {
/// The common base of these optimizers. adaptive.cpp has its member functions.
template <class O>
class Adaptive : public OptimizerWith<O> {
 public:
  explicit Adaptive(std::vector<Parameter> params, const O& options = {}) {
    this->add_param_group({std::move(params), options});
  }
  explicit Adaptive(std::vector<ParamGroup<O>> groups) {
    for (auto& g : groups) this->add_param_group(std::move(g));
  }
  const char* name() const override;
  bool supports_device_scaling() const override { return true; }

 protected:
  void check_options(std::size_t group) const override;
  std::vector<const char*> state_names() const override;
  bool uses_state(std::size_t group, std::size_t index) const override;
  double initial_state(std::size_t group) const override;
  const char* number_name() const override;
  void update(std::size_t group, Device device, DType dtype, const kernels::StepItems& items) override;
};
extern template class Adaptive<RMSpropOptions>;
extern template class Adaptive<AdagradOptions>;
extern template class Adaptive<AdadeltaOptions>;
extern template class Adaptive<AdamaxOptions>;
extern template class Adaptive<NAdamOptions>;
extern template class Adaptive<RAdamOptions>;
extern template class Adaptive<LionOptions>;
}  // namespace detail

/// RMSprop (Hinton, "Neural networks for machine learning", lecture 6e, 2012). The states are square_avg,
/// grad_avg (only if `centered`) and momentum_buffer (only with momentum).
class RMSprop : public detail::Adaptive<RMSpropOptions> {
 public:
  using Adaptive::Adaptive;
};

/// Adagrad (Duchi, Hazan and Singer, "Adaptive subgradient methods for online learning and stochastic
/// optimization", 2011). The state is sum.
class Adagrad : public detail::Adaptive<AdagradOptions> {
 public:
  using Adaptive::Adaptive;
};

/// Adadelta, whose steps have the unit of the parameters (Zeiler, "ADADELTA: an adaptive learning rate
/// method", 2012). The states are square_avg and acc_delta.
class Adadelta : public detail::Adaptive<AdadeltaOptions> {
 public:
  using Adaptive::Adaptive;
};

/// Adamax, which is Adam with the infinity norm (Kingma and Ba, "Adam: a method for stochastic optimization",
/// 2015, section 7.1). The states are exp_avg and exp_inf.
class Adamax : public detail::Adaptive<AdamaxOptions> {
 public:
  using Adaptive::Adaptive;
};

/// NAdam, which is Adam with Nesterov momentum (Dozat, "Incorporating Nesterov momentum into Adam", 2016).
/// The states are exp_avg, exp_avg_sq and the number mu_product.
class NAdam : public detail::Adaptive<NAdamOptions> {
 public:
  using Adaptive::Adaptive;
};

/// RAdam, which is Adam with a warm-up that follows from the variance of its step size (Liu et al., "On the
/// variance of the adaptive learning rate and beyond", 2020). The states are exp_avg and exp_avg_sq.
class RAdam : public detail::Adaptive<RAdamOptions> {
 public:
  using Adaptive::Adaptive;
};

/// Lion, which uses only the sign of the momentum (Chen et al., "Symbolic discovery of optimization
/// algorithms", 2023). Its learning rate is usually a third to a tenth of AdamW's. The state is exp_avg.
class Lion : public detail::Adaptive<LionOptions> {
 public:
  using Adaptive::Adaptive;
};

}  // namespace tapestry::optim
