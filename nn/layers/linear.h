#pragma once
#include "tapestry/nn/module.h"

namespace tapestry::nn {

struct LinearOptions {
  using Layer = class Linear;
  std::int64_t in_features = 0, out_features = 0;
  bool bias = true;
};

/// Computes x W^T + b over the last dimension. Parameters: weight (out, in) and bias (out). Both start
/// uniform in [-k, k] with k = 1 / sqrt(in).
class Linear : public Module {
 public:
  using Options = LinearOptions;
  explicit Linear(const Options& options);
  Tensor forward(const Tensor& x) override;
  std::string options_text() const override;

  const Options options;
  Parameter& weight;
  Parameter& bias;
};

}  // namespace tapestry::nn
