#pragma once
// Decoding that keeps the key/value cache from one call to the next, for conversations.
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "tapestry/nn/models/generate.h"

namespace apps::gpt {

class Decoder {
 public:
  /// The texts have at most `context` tokens; 0 takes the model's context.
  explicit Decoder(tapestry::nn::LanguageModel& model, std::int64_t context = 0)
      : model_(model), cache_(model.make_cache(context)) {}
  /// Appends tokens to `text` and returns them, as nn::generate() does. Tokens at the beginning of `text`
  /// whose keys and values are in the cache from earlier calls are not computed again.
  std::vector<std::int64_t> generate(std::vector<std::int64_t> text,
                                     const tapestry::nn::GenerateOptions& options,
                                     tapestry::nn::Sampler& sampler);
  /// The number of tokens that the last call took from the cache.
  std::int64_t reused() const { return reused_; }

 private:
  tapestry::nn::LanguageModel& model_;
  tapestry::nn::KvCache cache_;
  std::vector<std::int64_t> cached_;  // the tokens in cache_
  std::int64_t reused_ = 0;
};

}  // namespace apps::gpt
