#pragma once
#include <utility>

#include "tapestry/autograd/ops/pool.h"
#include "tapestry/nn/module.h"

namespace tapestry::nn {

struct MaxPool2dOptions {
  using Layer = class MaxPool2d;
  Pair kernel_size = 0;
  Pair stride = 0;  ///< 0 means kernel_size
  Pair padding = 0, dilation = 1;
  bool ceil_mode = false;
};
/// Returns the maximum of each window of (N, C, H, W) or (C, H, W).
class MaxPool2d : public Module {
 public:
  using Options = MaxPool2dOptions;
  explicit MaxPool2d(const Options& options);
  Tensor forward(const Tensor& x) override;
  /// return_indices=True: also returns the maxima's indices, for MaxUnpool2d.
  std::pair<Tensor, Tensor> forward_with_indices(const Tensor& x);
  std::string options_text() const override;
  const Options options;
};

struct AvgPool2dOptions {
  using Layer = class AvgPool2d;
  Pair kernel_size = 0;
  Pair stride = 0;  ///< 0 means kernel_size
  Pair padding = 0;
  bool ceil_mode = false;
  bool count_include_pad = true;
};
/// Returns the mean of each window of (N, C, H, W) or (C, H, W).
class AvgPool2d : public Module {
 public:
  using Options = AvgPool2dOptions;
  explicit AvgPool2d(const Options& options);
  Tensor forward(const Tensor& x) override;
  std::string options_text() const override;
  const Options options;
};

struct AdaptiveAvgPool2dOptions {
  using Layer = class AdaptiveAvgPool2d;
  Pair output_size = 0;
};
/// Returns means of windows that cover the input evenly, so that the output has size output_size.
class AdaptiveAvgPool2d : public Module {
 public:
  using Options = AdaptiveAvgPool2dOptions;
  explicit AdaptiveAvgPool2d(const Options& options);
  Tensor forward(const Tensor& x) override;
  std::string options_text() const override;
  const Options options;
};

}  // namespace tapestry::nn
