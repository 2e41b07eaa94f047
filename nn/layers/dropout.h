#pragma once
// Dropout of whole channels. nn/layers/activation.h has Dropout.
#include "tapestry/nn/module.h"

namespace tapestry::nn {

struct Dropout1dOptions {
  using Layer = class Dropout1d;
  double p = 0.5;
};
/// In training, sets each channel of (N, C, L) or (C, L) to 0 with probability p. See dropout1d().
class Dropout1d : public Module {
 public:
  using Options = Dropout1dOptions;
  explicit Dropout1d(const Options& options = {});
  Tensor forward(const Tensor& x) override;
  std::string options_text() const override;
  const Options options;
};

struct Dropout2dOptions {
  using Layer = class Dropout2d;
  double p = 0.5;
};
/// In training, sets each channel of (N, C, H, W) or (C, H, W) to 0 with probability p. See dropout2d().
class Dropout2d : public Module {
 public:
  using Options = Dropout2dOptions;
  explicit Dropout2d(const Options& options = {});
  Tensor forward(const Tensor& x) override;
  std::string options_text() const override;
  const Options options;
};

}  // namespace tapestry::nn
