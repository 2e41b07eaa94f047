#include "tapestry/apps/gpt/decoder.h"

#include <algorithm>

#include "tapestry/autograd/ops/creation.h"
#include "tapestry/autograd/ops/view.h"

namespace apps::gpt {

using namespace tapestry;

std::vector<std::int64_t> Decoder::generate(std::vector<std::int64_t> text,
                                            const nn::GenerateOptions& options, nn::Sampler& sampler) {
  const std::size_t given = text.size();
  const std::int64_t context = cache_.capacity();
  check(given > 0 && static_cast<std::int64_t>(given) < context, "[gpt] the text has ", given,
        " tokens, but the context has ", context, "; shorten it");
  const NoGradGuard no_grad;
  const Device device = model_.device();
  // At least one token must be computed, because its logits are needed.
  std::size_t known = 0;
  while (known < cached_.size() && known + 1 < given && cached_[known] == text[known]) ++known;
  cache_.truncate(static_cast<std::int64_t>(known));
  cached_.resize(known);
  reused_ = static_cast<std::int64_t>(known);
  const std::int64_t count = std::min(options.max_new_tokens, context - static_cast<std::int64_t>(given));
  for (std::int64_t i = 0; i < count; ++i) {
    const std::vector<std::int64_t> fresh(text.begin() + static_cast<std::ptrdiff_t>(cached_.size()),
                                          text.end());
    const Tensor ids = tensor(fresh, {1, static_cast<std::int64_t>(fresh.size())}).to(device);
    const Tensor logits = model_(ids, {.cache = &cache_, .last = true});
    cached_ = text;
    const std::int64_t token = sampler(logits.flatten(), text);
    text.push_back(token);
    if (options.on_token && !options.on_token(token)) break;
    if (std::find(options.stop.begin(), options.stop.end(), token) != options.stop.end()) break;
  }
  return {text.begin() + static_cast<std::ptrdiff_t>(given), text.end()};
}

}  // namespace apps::gpt
