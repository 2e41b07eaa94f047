#pragma once
// Layers that copy sliding windows to columns, and add columns to images.
#include "tapestry/autograd/ops/fold.h"
#include "tapestry/nn/module.h"

namespace tapestry::nn {

struct UnfoldOptions {
  using Layer = class Unfold;
  Pair kernel_size = 0;
  Pair dilation = 1, padding = 0, stride = 1;
};
/// Copies every window of (N, C, H, W) or (C, H, W) to a column of the result: im2col().
class Unfold : public Module {
 public:
  using Options = UnfoldOptions;
  explicit Unfold(const Options& options);
  Tensor forward(const Tensor& x) override;
  std::string options_text() const override;
  const Options options;
};

struct FoldOptions {
  using Layer = class Fold;
  Pair output_size = 0;
  Pair kernel_size = 0;
  Pair dilation = 1, padding = 0, stride = 1;
};
/// Adds columns (N, C R S, L) or (C R S, L) at their windows of an image of output_size: col2im().
class Fold : public Module {
 public:
  using Options = FoldOptions;
  explicit Fold(const Options& options);
  Tensor forward(const Tensor& x) override;
  std::string options_text() const override;
  const Options options;
};

}  // namespace tapestry::nn
