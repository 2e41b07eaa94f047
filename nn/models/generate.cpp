#include "tapestry/nn/models/generate.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <random>
#include <string>

#include "tapestry/autograd/ops/creation.h"
#include "tapestry/autograd/ops/elementwise.h"
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
// True for logits that can be read as they are, as those of generate() on a CPU.
bool is_plain(const Tensor& logits) {
  return logits.defined() && logits.dim() == 1 && logits.numel() > 0 && logits.dtype() == DType::f32 &&
         logits.device().is_cpu() && logits.is_contiguous();
}
// The index of the largest logit. If several are equal, it is the lowest index.
std::int64_t largest(const float* logits, std::int64_t n) {
  // Many independent maxima let the compiler use vectors; a search for an index in one loop does not.
  constexpr std::int64_t kLanes = 64;
  float lanes[kLanes];
  std::fill_n(lanes, kLanes, -std::numeric_limits<float>::infinity());
  std::int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes)
    for (std::int64_t j = 0; j < kLanes; ++j) lanes[j] = logits[i + j] > lanes[j] ? logits[i + j] : lanes[j];
  float best = *std::max_element(lanes, lanes + kLanes);
  for (; i < n; ++i) best = logits[i] > best ? logits[i] : best;
  bool ordered = true;
  for (std::int64_t j = 0; j < n; ++j) ordered &= logits[j] == logits[j];
  check(ordered, "[Sampler] a logit is NaN; the model's weights or its input are broken");
  check(best != -std::numeric_limits<float>::infinity(),
        "[Sampler] all logits are -inf, so no token can be chosen");
  return std::find(logits, logits + n, best) - logits;
}
}  // namespace

struct Sampler::Random {
  std::mt19937_64 next;
};

Sampler::Sampler(const Options& o)
    : options(checked(o)), random_(std::make_unique<Random>(Random{std::mt19937_64(o.seed)})) {}
Sampler::Sampler(const Sampler& other)
    : options(other.options), random_(std::make_unique<Random>(*other.random_)) {}
Sampler::~Sampler() = default;

std::vector<Sampler::Candidate> Sampler::candidates(const Tensor& logits,
                                                    std::span<const std::int64_t> history) const {
  if (options.temperature == 0 && options.repetition_penalty == 1 && is_plain(logits))
    return {{largest(logits.data<float>(), logits.numel()), 1}};
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
  double at = static_cast<double>(random_->next() >> 11) * 0x1p-53;
  for (const Candidate& c : all)
    if ((at -= c.probability) < 0) return c.token;
  return all.back().token;
}

namespace {
// Sets evaluation mode for its lifetime.
struct Evaluation {
  LanguageModel& model;
  const bool training;
  explicit Evaluation(LanguageModel& m) : model(m), training(m.is_training()) {
    if (training) model.eval();
  }
  ~Evaluation() {
    if (training) model.train();
  }
};

bool stops(const GenerateOptions& options, std::int64_t token) {
  return std::find(options.stop.begin(), options.stop.end(), token) != options.stop.end();
}

// `number` names the prompt of a batch, such as " 3".
void check_prompt(const LanguageModel& model, std::span<const std::int64_t> prompt,
                  const std::string& number) {
  const auto given = static_cast<std::int64_t>(prompt.size());
  check(given > 0, "[generate] the prompt", number, " is empty; begin with the token that begins texts");
  check(given < model.context_length(), "[generate] the prompt", number, " has ", given,
        " tokens, the context ", model.context_length(),
        "; shorten the prompt, so that there is room for an answer");
}
void check_count(const GenerateOptions& options) {
  check(options.max_new_tokens >= 0, "[generate] max_new_tokens is ", options.max_new_tokens,
        "; it must not be negative");
}
}  // namespace

std::vector<std::int64_t> generate(LanguageModel& model, std::span<const std::int64_t> prompt,
                                   const GenerateOptions& options, Sampler& sampler) {
  const auto given = static_cast<std::int64_t>(prompt.size());
  check_prompt(model, prompt, "");
  check_count(options);
  std::vector<std::int64_t> text(prompt.begin(), prompt.end());
  const std::int64_t count = std::min(options.max_new_tokens, model.context_length() - given);
  if (count == 0) return {};
  const Evaluation mode(model);
  const NoGradGuard no_grad;
  const Device device = model.device();
  KvCache cache = model.make_cache(given + count);
  Tensor fresh = tensor(text, {1, given}).to(device);
  for (std::int64_t i = 0; i < count; ++i) {
    const Tensor logits = model(fresh, {.cache = &cache, .last = true});
    const std::int64_t token = sampler(logits.flatten(), text);
    text.push_back(token);
    if (options.on_token && !options.on_token(token)) break;
    if (stops(options, token)) break;
    fresh = tensor(std::vector<std::int64_t>{token}, {1, 1}).to(device);
  }
  return {text.begin() + given, text.end()};
}

std::vector<std::int64_t> generate(LanguageModel& model, std::span<const std::int64_t> prompt,
                                   const GenerateOptions& options) {
  Sampler greedy;
  return generate(model, prompt, options, greedy);
}

std::vector<std::vector<std::int64_t>> generate_batch(LanguageModel& model,
                                                      const std::vector<std::vector<std::int64_t>>& prompts,
                                                      const GenerateOptions& options,
                                                      const SamplerOptions& sampler) {
  check(!prompts.empty(), "[generate] there are no prompts");
  check(!options.on_token, "[generate] on_token is for one prompt; read the result, or call generate()");
  check_count(options);
  std::int64_t longest = 0;
  bool equal = true;
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    check_prompt(model, prompts[i], concat({" ", i}));
    const auto given = static_cast<std::int64_t>(prompts[i].size());
    equal = equal && (i == 0 || given == longest);
    longest = std::max(longest, given);
  }
  const auto batch = static_cast<std::int64_t>(prompts.size());
  const std::int64_t count = std::min(options.max_new_tokens, model.context_length() - longest);
  std::vector<std::vector<std::int64_t>> texts = prompts, fresh(prompts.size());
  if (count == 0) return fresh;

  const Evaluation mode(model);
  const NoGradGuard no_grad;
  const Device device = model.device();
  const std::int64_t capacity = longest + count;
  Tensor ids = zeros({batch, longest}, DType::i64), positions = zeros({batch, capacity}, DType::i64),
         seen = zeros({batch, 1, 1, capacity}, DType::boolean);
  for (std::int64_t i = 0; i < batch; ++i) {
    const std::vector<std::int64_t>& prompt = prompts[static_cast<std::size_t>(i)];
    const std::int64_t fill = longest - static_cast<std::int64_t>(prompt.size());
    std::copy(prompt.begin(), prompt.end(), ids.data<std::int64_t>() + i * longest + fill);
    for (std::int64_t j = fill; j < capacity; ++j) {
      positions.data<std::int64_t>()[i * capacity + j] = j - fill;
      seen.data<bool>()[i * capacity + j] = true;
    }
  }
  ids = ids.to(device), positions = positions.to(device), seen = seen.to(device);
  std::vector<Sampler> samplers(prompts.size(), Sampler(sampler));
  std::vector<bool> done(prompts.size());
  KvCache cache = model.make_cache(capacity);
  for (std::int64_t step = 0; step < count; ++step) {
    const std::int64_t past = cache.length(), length = ids.size(1);
    TokenContext how{.cache = &cache, .last = true};
    if (!equal) {
      how.positions = positions.narrow(1, past, length);
      how.mask = seen.narrow(3, 0, past + length);
      if (length > 1)
        how.mask = logical_and(how.mask, document_mask(zeros({1, length}, {DType::i64, device})));
    }
    const Tensor logits = model(ids, how);
    std::vector<std::int64_t> next(prompts.size());
    bool all = true;
    for (std::size_t i = 0; i < prompts.size(); ++i) {
      if (done[i]) continue;
      const std::int64_t token =
          samplers[i](logits.select(0, static_cast<std::int64_t>(i)).flatten(), texts[i]);
      texts[i].push_back(token);
      fresh[i].push_back(token);
      next[i] = token;
      done[i] = stops(options, token);
      all = all && done[i];
    }
    if (all) break;
    ids = tensor(next, {batch, 1}).to(device);
  }
  return fresh;
}

}  // namespace tapestry::nn
