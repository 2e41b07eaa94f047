#pragma once
// Losses as modules. They are called with (input, target).
#include "tapestry/autograd/ops/loss.h"
#include "tapestry/nn/module.h"

namespace tapestry::nn {

struct CrossEntropyLossOptions {
  using Layer = class CrossEntropyLoss;
  Tensor weight = {};  ///< one weight per class
  std::int64_t ignore_index = -100;
  Reduction reduction = Reduction::mean;
  double label_smoothing = 0;
};
/// Computes cross_entropy of logits with class indices or class probabilities. The class weights are the
/// buffer `weight`.
class CrossEntropyLoss : public Module {
 public:
  using Options = CrossEntropyLossOptions;
  explicit CrossEntropyLoss(const Options& options = {});
  using Module::forward;
  Tensor forward(const Tensor& logits, const Tensor& target);
  Tensor operator()(const Tensor& logits, const Tensor& target) { return call(*this, logits, target); }
  std::string options_text() const override;

  const Options options;
  Buffer& weight;
};

struct NLLLossOptions {
  using Layer = class NLLLoss;
  Tensor weight = {};
  std::int64_t ignore_index = -100;
  Reduction reduction = Reduction::mean;
};
/// Computes nll_loss of log-probabilities with class indices.
class NLLLoss : public Module {
 public:
  using Options = NLLLossOptions;
  explicit NLLLoss(const Options& options = {});
  using Module::forward;
  Tensor forward(const Tensor& log_probs, const Tensor& target);
  Tensor operator()(const Tensor& log_probs, const Tensor& target) { return call(*this, log_probs, target); }
  std::string options_text() const override;

  const Options options;
  Buffer& weight;
};

struct MSELossOptions {
  using Layer = class MSELoss;
  Reduction reduction = Reduction::mean;
};
/// Computes (x - target)^2 and reduces it.
class MSELoss : public Module {
 public:
  using Options = MSELossOptions;
  explicit MSELoss(const Options& o = {}) : options(o) {}
  using Module::forward;
  Tensor forward(const Tensor& x, const Tensor& target);
  Tensor operator()(const Tensor& x, const Tensor& target) { return call(*this, x, target); }
  std::string options_text() const override;

  const Options options;
};

}  // namespace tapestry::nn
