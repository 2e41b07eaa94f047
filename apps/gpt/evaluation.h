#pragma once
// The loss of a long text, in windows that overlap. Source: "Perplexity of fixed-length models" in the
// documentation of Hugging Face's transformers.
#include <cstdint>
#include <functional>
#include <span>

#include "tapestry/nn/models/language_model.h"

namespace apps::gpt {

struct Window {
  std::span<const std::int64_t> ids;  ///< its tokens
  std::int64_t predicted = 0;         ///< the last so many of them count
};

/// Calls fn with windows that end at most `context` tokens after multiples of `stride`, which is at most
/// `context`, until the text ends or fn returns false. Each token of the text but the first is predicted in
/// one window. A window has at most `context` tokens before the last one that it predicts.
void each_window(std::span<const std::int64_t> text, std::int64_t context, std::int64_t stride,
                 const std::function<bool(const Window&)>& fn);

/// The mean loss of the predicted tokens, in nats, without gradients. Throws ValueError if the window
/// predicts none, or its first token.
double score(tapestry::nn::LanguageModel& model, const Window& window);

struct Perplexity {
  double nats = 0;
  std::int64_t tokens = 0;
  void add(double mean, std::int64_t count) { nats += mean * static_cast<double>(count), tokens += count; }
  double loss() const { return nats / static_cast<double>(tokens); }
};

}  // namespace apps::gpt
