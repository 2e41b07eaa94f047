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
std::string NLLLoss::options_text() const {
  return detail::OptionsText()
      .add("ignore_index", options.ignore_index, std::int64_t{-100})
      .add("reduction", name_of(options.reduction))
      .str();
}

Tensor MSELoss::forward(const Tensor& x, const Tensor& target) {
  return mse_loss(x, target, options.reduction);
}
std::string MSELoss::options_text() const {
  return detail::OptionsText().add("reduction", name_of(options.reduction)).str();
}

}  // namespace tapestry::nn
