#include "tapestry/apps/gpt/evaluation.h"

#include <algorithm>
#include <vector>

#include "tapestry/autograd/ops/creation.h"

namespace apps::gpt {

using namespace tapestry;

void each_window(std::span<const std::int64_t> text, std::int64_t context, std::int64_t stride,
                 const std::function<bool(const Window&)>& fn) {
  const auto size = static_cast<std::int64_t>(text.size());
  std::int64_t scored = 1;  // nothing predicts the first token
  for (std::int64_t begin = 0; scored < size; begin += stride) {
    const std::int64_t end = std::min(begin + context, size);
    if (end <= scored) continue;  // a window of one token
    // A window that does not overlap the one before needs one more token: that which predicts its first.
    const std::int64_t from = std::min(begin, scored - 1);
    const auto part = text.subspan(static_cast<std::size_t>(from), static_cast<std::size_t>(end - from));
    if (!fn({part, end - scored})) return;
    scored = end;
  }
}

double score(nn::LanguageModel& model, const Window& w) {
  const auto length = static_cast<std::int64_t>(w.ids.size()) - 1;
  check(w.predicted >= 1 && w.predicted <= length, "[score] ", w.predicted, " tokens of a window of ",
        length + 1, " cannot be predicted; the first has no token before it");
  const NoGradGuard no_grad;
  std::vector<std::int64_t> ids(w.ids.begin(), w.ids.end() - 1), targets(w.ids.begin() + 1, w.ids.end());
  std::fill(targets.begin(), targets.end() - w.predicted, -100);
  const Device device = model.device();
  return model(tensor(ids, {1, length}).to(device), {.targets = tensor(targets, {1, length}).to(device)})
      .item();
}

}  // namespace apps::gpt
