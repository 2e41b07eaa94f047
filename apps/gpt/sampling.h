#pragma once
// What `generate`, `chat` and the samples of `train` have in common: the options of the sampler, and text
// that appears while it is written.
#include <functional>
#include <string>
#include <vector>

#include "tapestry/apps/common/command_line.h"
#include "tapestry/data/tokenizer/tokenizer.h"
#include "tapestry/nn/models/generate.h"

namespace apps::gpt {

/// Adds --temperature, --top-k, --top-p, --min-p, --repetition-penalty and --seed.
void add_sampler_options(CommandLine& line, tapestry::nn::SamplerOptions& options);

/// Turns tokens into text, in whole characters, and watches for stop strings. What could be the beginning of
/// a stop string is held back until it is known not to be one.
class TextStream {
 public:
  using Write = std::function<void(const std::string&)>;
  TextStream(const tapestry::data::Tokenizer& tokenizer, std::vector<std::string> stop, Write write);
  /// Returns false if the text has reached a stop string, which is not written.
  bool next(std::int64_t token);
  /// Writes what was held back.
  void finish();
  /// All that was written.
  const std::string& text() const { return text_; }

 private:
  bool take(const std::string& more);
  tapestry::data::StreamDecoder decoder_;
  std::vector<std::string> stop_;
  Write write_;
  std::string held_, text_;
  bool stopped_ = false;
};

/// Writes to stdout at once.
void write_now(const std::string& text);

}  // namespace apps::gpt
