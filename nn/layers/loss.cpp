#include "tapestry/nn/layers/loss.h"

#include "tapestry/nn/internal/options_text.h"

namespace tapestry::nn {

namespace {
const char* name_of(Reduction reduction) {
  switch (reduction) {
    case Reduction::none:
      return "none";
    case Reduction::mean:
      return "mean";
    case Reduction::sum:
      return "sum";
  }
  return "";
}
}  // namespace

CrossEntropyLoss::CrossEntropyLoss(const Options& o) : options(o), weight(buffer("weight", o.weight)) {
  check(o.label_smoothing >= 0 && o.label_smoothing <= 1,
        "[CrossEntropyLoss] label_smoothing must lie in [0, 1] but is ", o.label_smoothing);
}
Tensor CrossEntropyLoss::forward(const Tensor& logits, const Tensor& target) {
  return cross_entropy(logits, target,
                       {.weight = weight,
                        .ignore_index = options.ignore_index,
                        .reduction = options.reduction,
                        .label_smoothing = options.label_smoothing});
}
Tensor CrossEntropyLoss::operator()(const Tensor& logits, const Tensor& target) const {
  return call(*this, logits, target);
}
std::string CrossEntropyLoss::options_text() const {
  return detail::OptionsText()
      .add("ignore_index", options.ignore_index, std::int64_t{-100})
      .add("reduction", name_of(options.reduction))
      .add("label_smoothing", options.label_smoothing, 0.0)
      .str();
}

NLLLoss::NLLLoss(const Options& o) : options(o), weight(buffer("weight", o.weight)) {}
Tensor NLLLoss::forward(const Tensor& log_probs, const Tensor& target) {
  return nll_loss(log_probs, target,
                  {.weight = weight, .ignore_index = options.ignore_index, .reduction = options.reduction});
}
Tensor NLLLoss::operator()(const Tensor& log_probs, const Tensor& target) const {
  return call(*this, log_probs, target);
}
std::string NLLLoss::options_text() const {
  return detail::OptionsText()
      .add("ignore_index", options.ignore_index, std::int64_t{-100})
      .add("reduction", name_of(options.reduction))
      .str();
}

Tensor MSELoss::forward(const Tensor& x, const Tensor& target) {
  return mse_loss(x, target, options.reduction);
}
Tensor MSELoss::operator()(const Tensor& x, const Tensor& target) const { return call(*this, x, target); }
std::string MSELoss::options_text() const {
  return detail::OptionsText().add("reduction", name_of(options.reduction)).str();
}

namespace detail {

std::string loss_text(const LossOptions& o) {
  return OptionsText().add("reduction", name_of(o.reduction)).str();
}
std::string loss_text(const functional::SmoothL1LossParams& o) {
  return OptionsText().add("reduction", name_of(o.reduction)).add("beta", o.beta).str();
}
std::string loss_text(const functional::HuberLossParams& o) {
  return OptionsText().add("reduction", name_of(o.reduction)).add("delta", o.delta).str();
}
std::string loss_text(const functional::KLDivLossParams& o) {
  static constexpr const char* names[] = {"none", "mean", "sum", "batchmean"};
  return OptionsText()
      .add("reduction", names[static_cast<std::size_t>(o.reduction)])
      .add("log_target", o.log_target, false)
      .str();
}
std::string loss_text(const functional::CosineEmbeddingLossParams& o) {
  return OptionsText().add("margin", o.margin).add("reduction", name_of(o.reduction)).str();
}
std::string loss_text(const functional::TripletMarginLossParams& o) {
  return OptionsText()
      .add("margin", o.margin)
      .add("p", o.p)
      .add("eps", o.eps)
      .add("swap", o.swap, false)
      .add("reduction", name_of(o.reduction))
      .str();
}
std::string loss_text(const functional::HingeEmbeddingLossParams& o) {
  return OptionsText().add("margin", o.margin).add("reduction", name_of(o.reduction)).str();
}
std::string loss_text(const functional::MarginRankingLossParams& o) {
  return OptionsText().add("margin", o.margin).add("reduction", name_of(o.reduction)).str();
}
std::string loss_text(const functional::GaussianNLLLossParams& o) {
  return OptionsText()
      .add("full", o.full, false)
      .add("eps", o.eps)
      .add("reduction", name_of(o.reduction))
      .str();
}
std::string loss_text(const functional::PoissonNLLLossParams& o) {
  return OptionsText()
      .add("log_input", o.log_input)
      .add("full", o.full, false)
      .add("eps", o.eps)
      .add("reduction", name_of(o.reduction))
      .str();
}
std::string loss_text(const CtcParams& o) {
  return OptionsText()
      .add("blank", o.blank)
      .add("reduction", name_of(o.reduction))
      .add("zero_infinity", o.zero_infinity, false)
      .str();
}

}  // namespace detail

BCELoss::BCELoss(const Options& o) : options(o), weight(buffer("weight", o.weight)) {}
Tensor BCELoss::forward(const Tensor& x, const Tensor& target) {
  return functional::binary_cross_entropy(x, target, {.weight = weight, .reduction = options.reduction});
}
Tensor BCELoss::operator()(const Tensor& x, const Tensor& target) const { return call(*this, x, target); }
std::string BCELoss::options_text() const { return detail::loss_text(LossOptions{options.reduction}); }

BCEWithLogitsLoss::BCEWithLogitsLoss(const Options& o)
    : options(o), weight(buffer("weight", o.weight)), pos_weight(buffer("pos_weight", o.pos_weight)) {}
Tensor BCEWithLogitsLoss::forward(const Tensor& x, const Tensor& target) {
  return functional::binary_cross_entropy_with_logits(
      x, target, {.weight = weight, .reduction = options.reduction, .pos_weight = pos_weight});
}
Tensor BCEWithLogitsLoss::operator()(const Tensor& x, const Tensor& target) const {
  return call(*this, x, target);
}
std::string BCEWithLogitsLoss::options_text() const {
  return detail::loss_text(LossOptions{options.reduction});
}

}  // namespace tapestry::nn
