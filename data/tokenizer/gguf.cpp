// Reads the tokenizer of a GGUF file. Source: docs/gguf.md of ggml, and llama-vocab.cpp of llama.cpp, which
// knows what the names of the rules mean.
#include "tapestry/core/gguf.h"

#include <algorithm>
#include <iterator>
#include <string>
#include <string_view>
#include <utility>

#include "tapestry/data/tokenizer/parts.h"

namespace tapestry::data {
namespace {

// The types of tokens of llama.cpp.
constexpr std::int64_t kNormal = 1, kControl = 3, kUserDefined = 4, kUnused = 5, kByte = 6;

struct Pre {
  const char* name;
  WordRule rule;
};
constexpr Pre kRules[] = {
    {"gpt-2", WordRule::gpt2},    {"gpt2", WordRule::gpt2},
    {"smollm", WordRule::smollm}, {"llama-bpe", WordRule::llama3},
    {"llama3", WordRule::llama3}, {"llama-v3", WordRule::llama3},
    {"qwen2", WordRule::qwen2},   {"deepseek-r1-qwen", WordRule::qwen2},
};

// Throws if a key of the tokenizer asks for what byte-level BPE does not have.
void check_keys(const GgufMetadata& metadata) {
  // The first ones are read here or by programs; the others name tokens, or belong to other kinds of
  // tokenizers.
  constexpr std::string_view kKnown[] = {"model",
                                         "pre",
                                         "tokens",
                                         "token_type",
                                         "merges",
                                         "add_bos_token",
                                         "add_eos_token",
                                         "scores",
                                         "token_type_count",
                                         "add_space_prefix",
                                         "remove_extra_whitespaces",
                                         "precompiled_charsmap"};
  constexpr std::string_view kPrefix = "tokenizer.ggml.";
  for (const auto& [key, value] : metadata.entries()) {
    if (!key.starts_with(kPrefix)) continue;
    const std::string_view name = std::string_view(key).substr(kPrefix.size());
    if (name.ends_with("_token_id") ||
        std::find(std::begin(kKnown), std::end(kKnown), name) != std::end(kKnown))
      continue;
    if (name == "add_sep_token" && !metadata.flag(key, false)) continue;
    metadata.broken("metadata \"", key, "\" asks for what is not supported");
  }
}

}  // namespace

TokenizerParts read_tokenizer_parts(const GgufMetadata& metadata) {
  const std::string model = metadata.string("tokenizer.ggml.model");
  if (model != "gpt2")
    metadata.broken("the tokenizer is of type \"", model, "\"; only byte-level BPE, \"gpt2\", is supported");
  const std::string pre = metadata.string("tokenizer.ggml.pre", "default");
  const Pre* found = nullptr;
  for (const Pre& rule : kRules)
    if (pre == rule.name) found = &rule;
  if (!found)
    metadata.broken("the pre-tokenizer \"", pre,
                    "\" is not supported; gpt-2, smollm, llama-bpe and qwen2 are");
  TokenizerParts parts;
  parts.rule = found->rule;
  parts.ignore_merges = found->rule == WordRule::llama3;
  parts.nfc = pre == "qwen2";  // as in the tokenizer.json of the family
  check_keys(metadata);
  parts.tokens = metadata.strings("tokenizer.ggml.tokens");
  const auto size = static_cast<std::int64_t>(parts.tokens.size());
  if (metadata.has("tokenizer.ggml.token_type")) {
    const std::vector<std::int64_t> types = metadata.integers("tokenizer.ggml.token_type");
    if (types.size() != parts.tokens.size())
      metadata.broken("there are ", size, " tokens, but ", types.size(), " types of tokens");
    for (std::int64_t id = 0; id < size; ++id) {
      const std::int64_t type = types[static_cast<std::size_t>(id)];
      if (type < kNormal || type > kByte)
        metadata.broken("token ", id, " has the type ", type, "; types are from 1 to 6");
      if (type == kByte)
        metadata.broken("token ", id, " stands for a byte, which byte-level BPE does not have");
      // The names of rows that pad the vocabulary are no text.
      std::string& text = parts.tokens[static_cast<std::size_t>(id)];
      if (type == kUnused && text.starts_with("[PAD")) text.clear();
      if (type == kControl || type == kUserDefined)
        parts.added.push_back({id, parts.tokens[static_cast<std::size_t>(id)], type == kControl});
    }
  }
  for (const std::string& merge : metadata.strings("tokenizer.ggml.merges")) {
    // Neither token contains a space, which the alphabet writes as U+0120.
    const std::size_t space = merge.find(' ');
    if (space == 0 || space == std::string::npos || space + 1 == merge.size() ||
        merge.find(' ', space + 1) != std::string::npos)
      metadata.broken("merge ", parts.merges.size(), " is not two tokens with a space between them");
    parts.merges.emplace_back(merge.substr(0, space), merge.substr(space + 1));
  }
  const auto around = [&](const char* flag, const char* key, bool fallback, std::vector<std::int64_t>& ids) {
    if (!metadata.flag(flag, fallback) || (fallback && !metadata.has(key))) return;
    const std::int64_t id = metadata.integer(key);
    if (id < 0 || id >= size) metadata.broken(key, " is ", id, ", but there are ", size, " tokens");
    ids.push_back(id);
  };
  // Llama 3's texts begin with <|begin_of_text|> if the file does not say otherwise.
  around("tokenizer.ggml.add_bos_token", "tokenizer.ggml.bos_token_id", found->rule == WordRule::llama3,
         parts.prefix);
  around("tokenizer.ggml.add_eos_token", "tokenizer.ggml.eos_token_id", false, parts.suffix);
  return parts;
}

Tokenizer Tokenizer::from_gguf(const GgufMetadata& metadata) {
  const TokenizerParts parts = read_tokenizer_parts(metadata);
  try {
    return Tokenizer(parts);
  } catch (const ValueError& error) {
    metadata.broken("[Tokenizer] ", error.what());
  } catch (const IndexError& error) {
    metadata.broken("[Tokenizer] ", error.what());
  }
}

}  // namespace tapestry::data
