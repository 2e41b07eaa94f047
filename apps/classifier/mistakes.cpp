#include "tapestry/apps/classifier/mistakes.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "tapestry/apps/classifier/svg.h"
#include "tapestry/tapestry.h"

namespace apps {

using namespace tapestry;

void WorstMistakes::add(const Tensor& images, const Tensor& labels, const Tensor& scores) {
  const NoGradGuard no_grad;
  const Tensor losses =
      cross_entropy(scores, labels, {.reduction = Reduction::none}).to(kFloat64).contiguous();
  const Tensor guesses = scores.argmax(1);
  for (std::int64_t i = 0; i < labels.size(0); ++i) {
    const std::int64_t label = labels.data<std::int64_t>()[i], guess = guesses.data<std::int64_t>()[i];
    const double loss = losses.data<double>()[i];
    if (label == guess || !std::isfinite(loss)) continue;
    if (worst_.size() == kCount && loss <= worst_.back().loss) continue;
    const auto place =
        std::find_if(worst_.begin(), worst_.end(), [&](const Mistake& m) { return m.loss < loss; });
    worst_.insert(place, {loss, label, guess, images.select(0, i).clone()});
    if (worst_.size() > kCount) worst_.pop_back();
  }
}

std::string WorstMistakes::svg(const std::vector<std::string>& classes, const std::string& title) const {
  std::vector<CaptionedPicture> pictures;
  for (const Mistake& m : worst_) {
    const Tensor low = m.image.min(), range = m.image.max() - low;
    const Tensor scaled = (m.image - low) / (range.item() > 0 ? range : ones_like(range));
    char loss[32];
    std::snprintf(loss, sizeof loss, "loss %.2f", m.loss);
    pictures.push_back({watch::encode_png(m.image.size(0) == 1 || m.image.size(0) == 3 ? scaled : scaled[0]),
                        {"true: " + classes.at(static_cast<std::size_t>(m.label)),
                         "guess: " + classes.at(static_cast<std::size_t>(m.guess)), loss}});
  }
  return pictures_svg(pictures, title);
}

}  // namespace apps
