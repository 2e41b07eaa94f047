// Training of a vocabulary, and tokenizers that are written to files.
#include "tapestry/data/tokenizer/bpe_trainer.h"

#include "tapestry/core/gguf.h"
#include "tapestry/data/tokenizer/parts.h"
#include "tests/support/catch.h"
#include "tests/support/files.h"

using namespace tapestry;
using namespace tapestry::data;

namespace {

constexpr const char* kText = "the cat sees a bird. a dog eats the bone! the cat sees a dog; aaaa aaa 1234";

std::string joined(const std::vector<std::pair<std::string, std::string>>& merges) {
  std::string all;
  for (const auto& [left, right] : merges) all += left + "+" + right + " ";
  return all;
}

}  // namespace

TEST_CASE("a trained vocabulary is that of Hugging Face's tokenizers") {
  const TokenizerParts parts = train_bpe(kText, {.vocab_size = 300});
  // BpeTrainer(vocab_size=300, min_frequency=2, special_tokens=["<|endoftext|>"],
  // initial_alphabet=ByteLevel.alphabet()) of tokenizers 0.23.3.
  const std::string g = "\xc4\xa0";  // how the alphabet writes a space
  CHECK(joined(parts.merges) == "a+a a+t h+e t+he " + g + "+a c+at d+o e+e s+ee " + g + "+b " + g + "+aa " +
                                    g + "+the " + g + "+cat " + g + "+do " + g + "+see " + g + "do+g " + g +
                                    "see+s ");
  CHECK(parts.tokens.size() == 274);
  CHECK(parts.tokens[0] == "<|endoftext|>");
  CHECK(parts.tokens[1] == "!");
  CHECK(parts.tokens[256] == "\xc5\x83");  // U+0143, the last of the alphabet
  const Tokenizer tokenizer(parts);
  CHECK(tokenizer.decode(tokenizer.encode("the cat <|endoftext|>\xc3\xa9\x01")) ==
        "the cat <|endoftext|>\xc3\xa9\x01");
  CHECK(tokenizer.encode("the cat").size() == 2);
}

TEST_CASE("options of a trained vocabulary") {
  CHECK(train_bpe(kText, {.vocab_size = 260}).tokens.size() == 260);
  CHECK(train_bpe(kText, {.vocab_size = 300, .min_frequency = 3}).merges.size() <
        train_bpe(kText, {.vocab_size = 300}).merges.size());
  CHECK(train_bpe("", {.vocab_size = 257}).merges.empty());
  // The text is split at control tokens, which are not counted.
  CHECK(train_bpe("<s><s><s><s>", {.vocab_size = 300, .special = {"<s>"}}).merges.empty());
  // Llama 3's rule keeps at most three digits together.
  CHECK(joined(train_bpe("12345 12345 12345", {.vocab_size = 258, .rule = WordRule::llama3}).merges) !=
        "4+5 ");

  CHECK_THROWS_WITH(train_bpe("a", {.vocab_size = 256}), ContainsSubstring("need 257"));
  CHECK_THROWS_WITH(train_bpe("a", {.min_frequency = 0}), ContainsSubstring("min_frequency"));
  CHECK_THROWS_WITH(train_bpe("a", {.special = {"x", "x"}}), ContainsSubstring("twice"));
  CHECK_THROWS_WITH(train_bpe("a", {.special = {""}}), ContainsSubstring("empty"));
  CHECK_THROWS_WITH(train_bpe("ab\xff"), ContainsSubstring("not UTF-8 at byte 2"));
}

TEST_CASE("a tokenizer is the same after it was written and read") {
  const tests::TempDir folder;
  for (const WordRule rule : {WordRule::gpt2, WordRule::smollm, WordRule::llama3, WordRule::qwen2}) {
    CAPTURE(word_rule_name(rule));
    TokenizerParts parts =
        train_bpe(kText, {.vocab_size = 290, .rule = rule, .special = {"<|begin|>", "<|end|>"}});
    parts.ignore_merges = rule == WordRule::llama3;
    parts.added.push_back({static_cast<std::int64_t>(parts.tokens.size()), "<tool>", false});
    parts.tokens.push_back("<tool>");
    if (rule != WordRule::gpt2) parts.prefix = {0};
    if (rule == WordRule::qwen2) parts.suffix = {1};
    const std::string json = tokenizer_json(parts), path = folder / "tokenizer.json";
    tests::write_file(path, json);
    GgufMetadata metadata;
    put_gguf(parts, metadata);
    for (const TokenizerParts& read : {read_tokenizer_parts(path), read_tokenizer_parts(metadata)}) {
      CHECK(read.tokens == parts.tokens);
      CHECK(read.merges == parts.merges);
      CHECK(read.rule == rule);
      CHECK(read.ignore_merges == parts.ignore_merges);
      CHECK(read.prefix == parts.prefix);
      CHECK(read.suffix == parts.suffix);
      CHECK(tokenizer_json(read) == json);
      const std::string text = "the dog sees 12345<|end|> <tool> caf\xc3\xa9";
      CHECK(Tokenizer(read).encode(text) == Tokenizer(parts).encode(text));
    }
  }
  TokenizerParts two = train_bpe("", {.vocab_size = 258, .special = {"a b", "c d"}});
  two.prefix = {0, 1};
  GgufMetadata metadata;
  CHECK_THROWS_WITH(put_gguf(two, metadata), ContainsSubstring("GGUF cannot express"));
  two.merges.emplace_back("x", "nothing");
  CHECK_THROWS_WITH(tokenizer_json(two), ContainsSubstring("not in the vocabulary"));
}
