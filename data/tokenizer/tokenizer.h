#pragma once
// Byte-level byte-pair encoding (BPE), the tokenizer of GPT-2, Llama 3, Qwen2 and SmolLM.
//
//   const auto tokenizer = data::Tokenizer::from_file("tokenizer.json");
//   std::vector<std::int64_t> ids = tokenizer.encode("Hello, world");
//   std::string text = tokenizer.decode(ids);
//
// Source: Sennrich et al., "Neural machine translation of rare words with subword units", 2016, and Radford
// et al., "Language models are unsupervised multitask learners", 2019. Ids are those of Hugging Face's
// tokenizers.
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tapestry {
class GgufMetadata;
}  // namespace tapestry

namespace tapestry::data {

/// The rule that splits text into words. Tokens never span two words.
enum class WordRule : std::uint8_t {
  gpt2,    ///< GPT-2: words, numbers and punctuation, each with the space before it
  smollm,  ///< each digit is a word; the rest as gpt2
  llama3,  ///< at most three digits a word; contractions in any case; newlines after punctuation
  qwen2,   ///< as llama3, but each digit is a word
};
/// "gpt2", "smollm", "llama3" or "qwen2"
const char* word_rule_name(WordRule rule);

/// A token that encode() finds in the text before it splits words.
struct AddedToken {
  std::int64_t id = 0;
  std::string text;
  /// A control token, such as <|im_end|>. It is not text: decode() can skip it, and encode() can read its
  /// name as plain text.
  bool special = true;
  /// Found in the normalized text between the added tokens that are not normalized, instead of in the text
  /// itself.
  bool normalized = false;
};

/// What a byte-level BPE tokenizer consists of, whatever file it came from.
struct TokenizerParts {
  /// The bytes of each token, by id, in the alphabet of GPT-2's files, in which a space is U+0120. An entry
  /// of an added token is its text.
  std::vector<std::string> tokens;
  /// Pairs of tokens in that alphabet, from the first merge to the last.
  std::vector<std::pair<std::string, std::string>> merges;
  WordRule rule = WordRule::gpt2;
  std::vector<AddedToken> added;
  /// A word that is a token stays whole, even if merges would not produce it (Llama 3).
  bool ignore_merges = false;
  /// Text is normalized to Unicode's form NFC, except for added tokens that are not normalized (Qwen2).
  bool nfc = false;
  /// Ids that encode() puts before and after the text, unless EncodeOptions::add_special is false.
  std::vector<std::int64_t> prefix, suffix;
};

struct EncodeOptions {
  bool add_special = true;  ///< add the tokenizer's prefix and suffix, such as <|begin_of_text|>
  /// Names of control tokens in the text become those tokens. Set it to false for text from users, who could
  /// otherwise end a message or begin another.
  bool parse_special = true;
};

struct DecodeOptions {
  bool skip_special = false;  ///< leave out control tokens
};

/// A tokenizer is immutable. Copies share everything, and all methods may run on several threads.
class Tokenizer {
 public:
  /// Throws ValueError if a merge or an added token refers to tokens that do not exist, or the same text
  /// has two ids; Error if Tapestry was built without PCRE2.
  explicit Tokenizer(const TokenizerParts& parts);
  /// Reads a tokenizer.json of Hugging Face's tokenizers. Throws IoError if the file cannot be read or is
  /// broken, or if it has a model, normalizer or rule other than those of byte-level BPE above; the message
  /// names it.
  static Tokenizer from_file(const std::string& path);
  /// Reads GPT-2's two files, vocab.json (or encoder.json) and merges.txt (or vocab.bpe). <|endoftext|> is a
  /// control token.
  static Tokenizer from_gpt2_files(const std::string& vocabulary, const std::string& merges);
  /// Reads the tokenizer in the metadata of a GGUF file (core/gguf.h). tokenizer.ggml.pre names the rule that
  /// splits words: gpt-2, smollm, llama-bpe (and its older names) or qwen2. Throws IoError if the tokenizer
  /// is no byte-level BPE, has another rule, or does not fit together; the message names it.
  static Tokenizer from_gguf(const GgufMetadata& metadata);

  /// Returns the ids of a text. Bytes that have no token (SmolLM has none for some control characters) are
  /// left out, as by Hugging Face's tokenizers. Throws ValueError with the byte position if `text` is not
  /// UTF-8. Throws Error if it must be normalized and Tapestry was built without ICU; text without characters
  /// from U+0300 on needs no normalization.
  std::vector<std::int64_t> encode(std::string_view text, const EncodeOptions& options = {}) const;
  /// Returns the text of ids. Bytes that are not UTF-8, such as half a character, become U+FFFD. Throws
  /// IndexError if an id is out of range.
  std::string decode(std::span<const std::int64_t> ids, const DecodeOptions& options = {}) const;
  /// Returns the bytes of one token, which need not be UTF-8. Throws IndexError.
  const std::string& bytes(std::int64_t id) const;
  /// Returns the id of a token by its bytes, or of an added token by its text.
  std::optional<std::int64_t> id_of(std::string_view bytes) const;

  std::int64_t vocab_size() const;
  bool is_special(std::int64_t id) const;
  WordRule rule() const;
  const std::vector<AddedToken>& added() const;
  /// The ids that encode() puts before a text.
  const std::vector<std::int64_t>& prefix() const;

 private:
  struct State;
  std::shared_ptr<const State> state_;
};

/// Decodes a stream of tokens, such as the words of a language model while it writes them.
class StreamDecoder {
 public:
  explicit StreamDecoder(Tokenizer tokenizer, const DecodeOptions& options = {})
      : tokenizer_(std::move(tokenizer)), options_(options) {}
  /// Returns the characters that are complete with this token, which may be none.
  std::string next(std::int64_t id);
  /// Returns U+FFFD if the stream ended inside a character, else nothing.
  std::string finish();

 private:
  Tokenizer tokenizer_;
  DecodeOptions options_;
  std::string pending_;  // the bytes of an incomplete character
};

}  // namespace tapestry::data
