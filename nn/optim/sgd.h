#pragma once
#include "tapestry/nn/optim/optimizer.h"

namespace tapestry::optim {

struct SGDOptions {
  double lr = 1e-3;
  double momentum = 0, dampening = 0, weight_decay = 0;
  bool nesterov = false, maximize = false;
  LowPrecision low_precision = LowPrecision::master;  ///< for f16 and bf16 parameters; not in state_dict()

  std::vector<OptionRef> refs() {
    return {{"lr", lr},
            {"momentum", momentum},
            {"dampening", dampening},
            {"weight_decay", weight_decay},
            {"nesterov", nesterov},
            {"maximize", maximize}};
  }
};

/// Stochastic gradient descent with momentum (Sutskever et al., "On the importance of initialization and
/// momentum", 2013). As in PyTorch, the learning rate multiplies the whole momentum buffer.
class SGD : public OptimizerWith<SGDOptions> {
 public:
  explicit SGD(std::vector<Parameter> params, const Options& options = {});
  explicit SGD(std::vector<Group> groups);
  const char* name() const override { return "SGD"; }
  bool supports_device_scaling() const override { return true; }

 protected:
  void check_options(std::size_t group) const override;
  std::vector<const char*> state_names() const override { return {"momentum_buffer"}; }
  bool uses_state(std::size_t group, std::size_t) const override { return options(group).momentum != 0; }
  void update(std::size_t group, Device device, DType dtype, const kernels::StepItems& items) override;
};

}  // namespace tapestry::optim
