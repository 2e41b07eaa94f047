#pragma once
// Text from a language model, one token after another.
//
//   nn::Sampler sampler({.temperature = 0.8, .top_p = 0.95, .seed = 1});
//   std::vector<std::int64_t> ids = nn::generate(model, prompt, {.max_new_tokens = 64}, sampler);
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "tapestry/nn/models/language_model.h"

namespace tapestry::nn {

struct SamplerOptions {
  /// Divides the logits. 0 chooses the most likely token, and the first of equal ones; then top_k, top_p and
  /// min_p do not matter.
  double temperature = 0;
  std::int64_t top_k = 0;  ///< keeps the k most likely tokens, and those equal to the last; 0 keeps all
  double top_p = 1;        ///< keeps the most likely tokens whose probabilities reach this sum
  double min_p = 0;        ///< keeps tokens with at least this part of the largest probability
  /// Divides the positive logits of tokens that have occurred and multiplies the negative ones (Keskar et al.
  /// 2019). 1 changes nothing.
  double repetition_penalty = 1;
  std::uint64_t seed = 0;
};

/// Chooses tokens from logits, on the host. The filters and their order are those of Hugging Face's
/// transformers: repetition penalty, temperature, top-k, top-p, min-p. At least one token always remains. The
/// tokens depend on the logits and the seed alone: the random numbers are those of std::mt19937_64.
class Sampler {
 public:
  using Options = SamplerOptions;
  /// Throws ValueError for options out of range.
  explicit Sampler(const Options& options = {});
  /// The copy continues with the same random numbers.
  Sampler(const Sampler& other);
  ~Sampler();
  /// The next token after `history`, which the repetition penalty reads. `logits` is (vocab_size), floating,
  /// on any device. Throws ValueError if a logit is NaN or all are -inf.
  std::int64_t operator()(const Tensor& logits, std::span<const std::int64_t> history = {});
  /// The tokens that may be chosen, in order of their probabilities, which add up to 1. One token for
  /// temperature 0.
  struct Candidate {
    std::int64_t token;
    double probability;
  };
  std::vector<Candidate> candidates(const Tensor& logits, std::span<const std::int64_t> history = {}) const;

  const Options options;

 private:
  struct Random;  // a pointer, because <random> is dear to compile
  std::unique_ptr<Random> random_;
};

struct GenerateOptions {
  std::int64_t max_new_tokens = 64;
  std::vector<std::int64_t> stop = {};  ///< tokens after which to end; they are part of the result
  /// Called with each new token as soon as it is known. Generation ends if the function returns false.
  std::function<bool(std::int64_t token)> on_token = {};
};

/// Appends tokens to `prompt` with a key/value cache, and returns the new ones. Ends after max_new_tokens, at
/// a token of `stop`, if on_token says so, or when the context is full. The model computes in evaluation mode
/// and without gradients; its mode is restored. Throws ValueError if the prompt is empty or fills the
/// context.
std::vector<std::int64_t> generate(LanguageModel& model, std::span<const std::int64_t> prompt,
                                   const GenerateOptions& options, Sampler& sampler);
/// Chooses the most likely tokens.
std::vector<std::int64_t> generate(LanguageModel& model, std::span<const std::int64_t> prompt,
                                   const GenerateOptions& options = {});

/// Does the same for several prompts at once, which may have different lengths: shorter ones are filled up on
/// the left, and what fills them is hidden from attention. Each prompt has a sampler of its own with these
/// options, so its tokens are those that generate() gives for it alone, up to rounding, and up to where the
/// longest prompt fills the context. A text that has ended is computed on until all have. Throws ValueError
/// as generate() does, for the prompt's number, if there are no prompts, or if on_token is set, which knows
/// no number.
std::vector<std::vector<std::int64_t>> generate_batch(LanguageModel& model,
                                                      const std::vector<std::vector<std::int64_t>>& prompts,
                                                      const GenerateOptions& options = {},
                                                      const SamplerOptions& sampler = {});

}  // namespace tapestry::nn
