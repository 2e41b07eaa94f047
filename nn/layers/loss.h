#pragma once
// Losses as modules. Unless a comment says otherwise, they are called with (input, target). nn/losses.h
// documents their options.
#include "tapestry/autograd/ops/loss.h"
#include "tapestry/nn/losses.h"
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
  Tensor operator()(const Tensor& logits, const Tensor& target) const;
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
  Tensor operator()(const Tensor& log_probs, const Tensor& target) const;
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
  Tensor operator()(const Tensor& x, const Tensor& target) const;
  std::string options_text() const override;

  const Options options;
};

struct LossOptions {
  Reduction reduction = Reduction::mean;
};

namespace detail {
std::string loss_text(const LossOptions& o);
std::string loss_text(const functional::SmoothL1LossParams& o);
std::string loss_text(const functional::HuberLossParams& o);
std::string loss_text(const functional::KLDivLossParams& o);
std::string loss_text(const functional::CosineEmbeddingLossParams& o);
std::string loss_text(const functional::TripletMarginLossParams& o);
std::string loss_text(const functional::HingeEmbeddingLossParams& o);
std::string loss_text(const functional::MarginRankingLossParams& o);
std::string loss_text(const functional::GaussianNLLLossParams& o);
std::string loss_text(const functional::PoissonNLLLossParams& o);
std::string loss_text(const CtcParams& o);

/// The common base of losses that have no tensors. forward() calls the function with the inputs and the
/// options.
template <auto kFunction, class O>
class Loss : public Module {
 public:
  using Options = O;
  explicit Loss(const O& o = {}) : options(o) {}
  using Module::forward;
  template <class... T>
  requires(sizeof...(T) > 1) Tensor forward(const T&... inputs) {
    if constexpr (std::is_same_v<O, LossOptions>) return kFunction(inputs..., options.reduction);
    else return kFunction(inputs..., options);
  }
  template <class... T>
  Tensor operator()(const T&... inputs) const {
    return call(*this, inputs...);
  }
  std::string options_text() const override { return loss_text(options); }

  const Options options;
};
}  // namespace detail

class L1Loss : public detail::Loss<functional::l1_loss, LossOptions> {
 public:
  using Loss::Loss;
};
class SmoothL1Loss : public detail::Loss<functional::smooth_l1_loss, functional::SmoothL1LossParams> {
 public:
  using Loss::Loss;
};
class HuberLoss : public detail::Loss<functional::huber_loss, functional::HuberLossParams> {
 public:
  using Loss::Loss;
};
/// The input has log-probabilities.
class KLDivLoss : public detail::Loss<functional::kl_div, functional::KLDivLossParams> {
 public:
  using Loss::Loss;
};
/// Called with (a, b, target).
class CosineEmbeddingLoss
    : public detail::Loss<functional::cosine_embedding_loss, functional::CosineEmbeddingLossParams> {
 public:
  using Loss::Loss;
};
/// Called with (anchor, positive, negative).
class TripletMarginLoss
    : public detail::Loss<functional::triplet_margin_loss, functional::TripletMarginLossParams> {
 public:
  using Loss::Loss;
};
class HingeEmbeddingLoss
    : public detail::Loss<functional::hinge_embedding_loss, functional::HingeEmbeddingLossParams> {
 public:
  using Loss::Loss;
};
/// Called with (a, b, target).
class MarginRankingLoss
    : public detail::Loss<functional::margin_ranking_loss, functional::MarginRankingLossParams> {
 public:
  using Loss::Loss;
};
class SoftMarginLoss : public detail::Loss<functional::soft_margin_loss, LossOptions> {
 public:
  using Loss::Loss;
};
/// Called with (input, target, var).
class GaussianNLLLoss
    : public detail::Loss<functional::gaussian_nll_loss, functional::GaussianNLLLossParams> {
 public:
  using Loss::Loss;
};
class PoissonNLLLoss : public detail::Loss<functional::poisson_nll_loss, functional::PoissonNLLLossParams> {
 public:
  using Loss::Loss;
};
/// Called with (log_probs, targets, input_lengths, target_lengths).
class CTCLoss : public detail::Loss<functional::ctc_loss, CtcParams> {
 public:
  using Loss::Loss;
};

/// Computes binary_cross_entropy of probabilities. The weight is the buffer `weight`.
class BCELoss : public Module {
 public:
  using Options = functional::BCELossParams;
  explicit BCELoss(const Options& options = {});
  using Module::forward;
  Tensor forward(const Tensor& x, const Tensor& target);
  Tensor operator()(const Tensor& x, const Tensor& target) const;
  std::string options_text() const override;

  const Options options;
  Buffer& weight;
};

/// Computes binary_cross_entropy_with_logits. The weights are the buffers `weight` and `pos_weight`.
class BCEWithLogitsLoss : public Module {
 public:
  using Options = functional::BCEWithLogitsLossParams;
  explicit BCEWithLogitsLoss(const Options& options = {});
  using Module::forward;
  Tensor forward(const Tensor& x, const Tensor& target);
  Tensor operator()(const Tensor& x, const Tensor& target) const;
  std::string options_text() const override;

  const Options options;
  Buffer& weight;
  Buffer& pos_weight;
};

}  // namespace tapestry::nn
