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

struct BilinearOptions {
  using Layer = class Bilinear;
  std::int64_t in1_features = 0, in2_features = 0, out_features = 0;
  bool bias = true;
};

/// Computes y_k = sum over i and j of a_i weight_kij b_j, plus bias_k, over the last dimensions of two
/// inputs, whose other dimensions are equal. Parameters: weight (out, in1, in2) and bias (out). Both start
/// uniform in [-k, k] with k = 1 / sqrt(in1).
class Bilinear : public Callable<Bilinear> {
 public:
  using Options = BilinearOptions;
  explicit Bilinear(const Options& options);
  using Module::forward;
  Tensor forward(const Tensor& a, const Tensor& b);
  std::string options_text() const override;

  const Options options;
  Parameter& weight;
  Parameter& bias;
};

}  // namespace tapestry::nn
