#pragma once
// Makes a byte-level BPE vocabulary from text.
//
//   const data::Tokenizer tokenizer(data::train_bpe(text, {.vocab_size = 4096}));
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tapestry/data/tokenizer/tokenizer.h"

namespace tapestry::data {

struct BpeTrainOptions {
  /// Tokens of the result, if the text has enough pairs: the control tokens, the 256 bytes, and one for each
  /// merge.
  std::int64_t vocab_size = 4096;
  WordRule rule = WordRule::gpt2;
  /// Control tokens, which get the first ids. Where their names occur in the text, it is split, and they are
  /// not counted.
  std::vector<std::string> special = {"<|endoftext|>"};
  std::int64_t min_frequency = 2;  ///< pairs that occur less often are not merged
};

/// Merges the most frequent pair of tokens inside words, the one with the smaller ids among equals, until the
/// vocabulary is full (Sennrich et al. 2016). The result is that of BpeTrainer of Hugging Face's tokenizers
/// with ByteLevel's initial alphabet. Throws ValueError if vocab_size has no room for the bytes,
/// min_frequency is not positive, a control token is empty or occurs twice, or the text is not UTF-8.
TokenizerParts train_bpe(std::string_view text, const BpeTrainOptions& options = {});

}  // namespace tapestry::data
