#pragma once
#include "tapestry/autograd/ops/conv.h"
#include "tapestry/nn/module.h"

namespace tapestry::nn {

struct Conv2dOptions {
  using Layer = class Conv2d;
  std::int64_t in_channels = 0, out_channels = 0;
  Pair kernel_size = 0;
  Pair stride = 1, padding = 0, dilation = 1;
  std::int64_t groups = 1;
  bool bias = true;
};

/// 2-d convolution of (N, C, H, W). Parameters: weight (out, in / groups, kernel height, kernel width) and
/// bias (out). Both start uniform in [-b, b] with b = 1 / sqrt(fan-in).
class Conv2d : public Module {
 public:
  using Options = Conv2dOptions;
  explicit Conv2d(const Options& options);
  Tensor forward(const Tensor& x) override;
  std::string options_text() const override;

  const Options options;
  Parameter& weight;
  Parameter& bias;
};

}  // namespace tapestry::nn
