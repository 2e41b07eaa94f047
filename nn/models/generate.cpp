#include "tapestry/nn/models/generate.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

#include "tapestry/autograd/ops/creation.h"
#include "tapestry/autograd/ops/view.h"

namespace tapestry::nn {

namespace {
constexpr double kInfinity = std::numeric_limits<double>::infinity();

const SamplerOptions& checked(const SamplerOptions& o) {
  check(o.temperature >= 0 && std::isfinite(o.temperature), "[Sampler] temperature is ", o.temperature,
        "; it must be 0, for the most likely token, or positive");
  check(o.top_k >= 0, "[Sampler] top_k is ", o.top_k, "; it must be positive, or 0 for all tokens");
  check(o.top_p > 0 && o.top_p <= 1, "[Sampler] top_p is ", o.top_p, "; it must lie in (0, 1]");
  check(o.min_p >= 0 && o.min_p <= 1, "[Sampler] min_p is ", o.min_p, "; it must lie in [0, 1]");
  check(o.repetition_penalty > 0 && std::isfinite(o.repetition_penalty), "[Sampler] repetition_penalty is ",
        o.repetition_penalty, "; it must be positive, and 1 changes nothing");
  return o;
}

// The logits as numbers, after the repetition penalty.
std::vector<double> penalised(const Tensor& logits, std::span<const std::int64_t> history, double penalty) {
  tapestry::detail::check_defined("Sampler", logits, "logits");
  check(logits.dim() == 1 && logits.numel() > 0 && is_floating(logits.dtype()),
        "[Sampler] logits have shape ", logits.sizes(), " and dtype ", logits.dtype(),
        "; expected floating numbers (vocab_size)");
  const Tensor host = logits.detach().to(kCPU, DType::f64).contiguous();
  std::vector<double> values(host.data<double>(), host.data<double>() + host.numel());
  for (const double v : values)
    check(!std::isnan(v), "[Sampler] a logit is NaN; the model's weights or its input are broken");
  if (penalty == 1) return values;
  std::vector<bool> done(values.size());
  for (const std::int64_t token : history) {
    const auto i = static_cast<std::size_t>(token);
    check<IndexError>(token >= 0 && i < values.size(), "[Sampler] token ", token,
                      " of the history is outside [0, ", values.size(), ")");
    if (done[i]) continue;
    done[i] = true;
    values[i] = values[i] > 0 ? values[i] / penalty : values[i] * penalty;
  }
  return values;
}
}  // namespace

Sampler::Sampler(const Options& o) : options(checked(o)), random_(o.seed) {}

std::vector<Sampler::Candidate> Sampler::candidates(const Tensor& logits,
                                                    std::span<const std::int64_t> history) const {
  const std::vector<double> values = penalised(logits, history, options.repetition_penalty);
  const auto best = std::max_element(values.begin(), values.end());
  check(*best != -kInfinity, "[Sampler] all logits are -inf, so no token can be chosen");
  if (options.temperature == 0) return {{best - values.begin(), 1}};

  std::vector<Candidate> kept;
  kept.reserve(values.size());
  double sum = 0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    // +inf - inf is NaN: a logit of +inf excludes all that are smaller.
    const double relative = values[i] == *best ? 0 : (values[i] - *best) / options.temperature;
    kept.push_back({static_cast<std::int64_t>(i), std::exp(relative)});
  }
  if (options.top_k > 0 && options.top_k < static_cast<std::int64_t>(kept.size())) {
    // Most tokens go before the rest is sorted: a vocabulary takes milliseconds to sort.
    std::vector<double> all;
    for (const Candidate& c : kept) all.push_back(c.probability);
    const auto last = all.begin() + (options.top_k - 1);
    std::nth_element(all.begin(), last, all.end(), std::greater<>());
    std::erase_if(kept, [least = *last](const Candidate& c) { return c.probability < least; });
  }
  // A stable sort: equal tokens stay in order, so that results do not depend on the standard library.
  std::stable_sort(kept.begin(), kept.end(),
                   [](const Candidate& a, const Candidate& b) { return a.probability > b.probability; });
  const auto normalise = [&] {
    sum = 0;
    for (const Candidate& c : kept) sum += c.probability;
    for (Candidate& c : kept) c.probability /= sum;
  };
  normalise();
  if (options.top_p < 1) {
    std::size_t n = 0;
    for (double reached = 0; n < kept.size() && reached < options.top_p; ++n) reached += kept[n].probability;
    kept.resize(std::max<std::size_t>(n, 1));
    normalise();
  }
  if (options.min_p > 0) {
    const double least = options.min_p * kept[0].probability;
    while (kept.size() > 1 && kept.back().probability < least) kept.pop_back();
    normalise();
  }
  while (kept.size() > 1 && kept.back().probability == 0) kept.pop_back();
  return kept;
}

std::int64_t Sampler::operator()(const Tensor& logits, std::span<const std::int64_t> history) {
  const std::vector<Candidate> all = candidates(logits, history);
  if (all.size() == 1) return all[0].token;
  // 53 random bits give a number in [0, 1). std::uniform_real_distribution differs between libraries.
  double at = static_cast<double>(random_() >> 11) * 0x1p-53;
  for (const Candidate& c : all)
    if ((at -= c.probability) < 0) return c.token;
  return all.back().token;
}

std::vector<std::int64_t> generate(LanguageModel& model, std::span<const std::int64_t> prompt,
                                   const GenerateOptions& options, Sampler& sampler) {
  const auto given = static_cast<std::int64_t>(prompt.size());
  check(given > 0, "[generate] the prompt is empty; begin with the token that begins texts");
  check(given < model.context_length(), "[generate] the prompt has ", given, " tokens, the context ",
        model.context_length(), "; shorten the prompt, so that there is room for an answer");
  check(options.max_new_tokens >= 0, "[generate] max_new_tokens is ", options.max_new_tokens,
        "; it must not be negative");
  std::vector<std::int64_t> text(prompt.begin(), prompt.end());
  const std::int64_t count = std::min(options.max_new_tokens, model.context_length() - given);
  if (count == 0) return {};
  struct Mode {
    LanguageModel& model;
    const bool training;
    explicit Mode(LanguageModel& m) : model(m), training(m.is_training()) {
      if (training) model.eval();
    }
    ~Mode() {
      if (training) model.train();
    }
  } const mode(model);
  const NoGradGuard no_grad;
  const Device device = model.output_weight()->device();
  KvCache cache = model.make_cache(given + count);
  Tensor fresh = tensor(text, {1, given}).to(device);
  for (std::int64_t i = 0; i < count; ++i) {
    const Tensor logits = model(fresh, {.cache = &cache, .last = true});
    const std::int64_t token = sampler(logits.flatten(), text);
    text.push_back(token);
    if (options.on_token && !options.on_token(token)) break;
    if (std::find(options.stop.begin(), options.stop.end(), token) != options.stop.end()) break;
    fresh = tensor(std::vector<std::int64_t>{token}, {1, 1}).to(device);
  }
  return {text.begin() + given, text.end()};
}

std::vector<std::int64_t> generate(LanguageModel& model, std::span<const std::int64_t> prompt,
                                   const GenerateOptions& options) {
  Sampler greedy;
  return generate(model, prompt, options, greedy);
}

}  // namespace tapestry::nn
