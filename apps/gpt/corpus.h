#pragma once
// Text as one long sequence of tokens, and the windows of it that a model is trained on.
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tapestry/core/tensor.h"
#include "tapestry/data/tokenizer/parts.h"

namespace apps::gpt {

struct Corpus {
  std::vector<std::int32_t> train, held_out;
  std::int64_t separator = -1;  ///< the token with which a document begins, or -1
  std::optional<tapestry::data::TokenizerParts> tokenizer;
};

struct CorpusOptions {
  std::vector<std::string> text, tokens;  ///< files: text, or llm.c's token files
  std::vector<std::string> held_out;      ///< files of the same kind to measure the loss on
  double held_out_part = 0.05;            ///< of the end of the files, unless held_out is given
  std::string tokenizer;                  ///< a tokenizer.json, or empty
  std::int64_t vocab_size = 0;            ///< 257 is bytes; more are trained from the text
  std::int64_t separator = -1;            ///< of token files
};

/// Reads the files. A text file is a document, or several, with <|endoftext|> between them. Throws IoError
/// for missing or broken files, and ValueError for text that is not UTF-8; errors name the file.
Corpus read_corpus(const CorpusOptions& options);

/// The ids of one of llm.c's files: 256 integers (the first is 20240520 and its ids have 2 bytes, or 20240801
/// and 4 bytes), then the ids. Throws IoError.
std::vector<std::int32_t> read_token_file(const std::string& path);

/// Sequences for one step of a model.
struct Batch {
  tapestry::Tensor ids, targets;  ///< i64 (N, L); the targets are the tokens that follow
  tapestry::Tensor documents;     ///< i64 (N, L), or undefined if each sequence has one document
};

/// Windows of `length` tokens in an order that `seed` and the number of the pass over the text decide.
class Windows {
 public:
  /// `tokens` must outlive this object. Throws ValueError if the text is shorter than one window.
  Windows(const std::vector<std::int32_t>& tokens, std::int64_t length, std::int64_t separator,
          std::uint64_t seed);
  /// The number of windows in a pass.
  std::int64_t size() const { return count_; }
  /// The samples first, first + 1, ... of an endless sequence of passes.
  Batch batch(std::int64_t first, std::int64_t count);
  /// The windows first, first + 1, ... in their order in the text.
  Batch in_order(std::int64_t first, std::int64_t count) const;

 private:
  Batch at(const std::vector<std::int64_t>& begins) const;
  void shuffle(std::int64_t pass);

  const std::vector<std::int32_t>& tokens_;
  const std::int64_t length_, separator_;
  const std::uint64_t seed_;
  std::int64_t count_, pass_ = -1, offset_ = 0;
  std::vector<std::int64_t> order_;  // of the windows in pass_
};

}  // namespace apps::gpt
