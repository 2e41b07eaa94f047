#pragma once
// A language model of characters, and the text that it generates.
#include <string>
#include <utility>

#include "tapestry/apps/char_lstm/text.h"
#include "tapestry/nn/nn.h"

namespace apps {

struct CharLstmOptions {
  std::int64_t hidden = 256, layers = 1;
  double dropout = 0;
};

/// An embedding, an LSTM, and a linear layer that scores the next character. The vocabulary is a buffer, so
/// that a saved model can be used without its training text.
struct CharLstm : tapestry::nn::Module {
  using Tensor = tapestry::Tensor;
  using State = tapestry::nn::LSTMState;

  CharLstm(const Tensor& codes, const CharLstmOptions& options);
  /// Returns the logits (T, N, V) of the characters that follow the tokens (T, N), and the last state.
  std::pair<Tensor, State> forward(const Tensor& tokens, const State& state);

  tapestry::nn::Buffer& codes;
  tapestry::nn::Embedding& embedding;
  tapestry::nn::LSTM& lstm;
  tapestry::nn::Dropout& dropout;
  tapestry::nn::Linear& head;
};

/// A model that nn::save_model() has saved.
std::unique_ptr<CharLstm> load(const std::string& path);

/// The mean number of bits per character that the model needs for a text of this many streams, whose state it
/// keeps.
double bits_per_character(CharLstm& model, const Streams& text);

struct SampleOptions {
  std::int64_t length = 400;
  double temperature = 0.8;  ///< below 1: closer to the most likely characters; 0: always the most likely one
  std::int64_t top_k = 0;    ///< draws from the k most likely characters; 0: from all
};
/// Continues the prompt by `length` characters that are drawn by the model's probabilities.
std::string sample(CharLstm& model, const std::string& prompt, const SampleOptions& options);

}  // namespace apps
