// Writes tokenizers. files.cpp and gguf.cpp read them.
#include "tapestry/data/tokenizer/parts.h"

#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "tapestry/core/error.h"
#include "tapestry/core/gguf.h"
#include "tapestry/data/tokenizer/internal/patterns.h"

namespace tapestry::data {
namespace {

using OrderedJson = nlohmann::ordered_json;

OrderedJson byte_level(bool use_regex) {
  return {
      {"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", use_regex}};
}

OrderedJson pre_tokenizer(WordRule rule) {
  if (rule == WordRule::gpt2) return byte_level(true);
  OrderedJson first;
  if (rule == WordRule::smollm) {
    first = {{"type", "Digits"}, {"individual_digits", true}};
  } else {
    first = {{"type", "Split"},
             {"pattern", {{"Regex", rule == WordRule::llama3 ? kLlama3Pattern : kQwen2Pattern}}},
             {"behavior", "Isolated"},
             {"invert", false}};
  }
  OrderedJson steps = OrderedJson::array();
  steps.push_back(std::move(first));
  steps.push_back(byte_level(rule == WordRule::smollm));
  return {{"type", "Sequence"}, {"pretokenizers", std::move(steps)}};
}

// What stands around texts.
OrderedJson post_processor(const TokenizerParts& parts) {
  if (parts.prefix.empty() && parts.suffix.empty()) return byte_level(true);
  const auto name = [&](std::int64_t id) { return parts.tokens.at(static_cast<std::size_t>(id)); };
  OrderedJson specials = OrderedJson::object();
  const auto around = [&](const char* sequence, int type) {
    OrderedJson out = OrderedJson::array();
    const auto put = [&](const std::vector<std::int64_t>& ids) {
      for (const std::int64_t id : ids) {
        out.push_back({{"SpecialToken", {{"id", name(id)}, {"type_id", type}}}});
        specials[name(id)] = {{"id", name(id)}, {"ids", {id}}, {"tokens", {name(id)}}};
      }
    };
    put(parts.prefix);
    out.push_back({{"Sequence", {{"id", sequence}, {"type_id", type}}}});
    put(parts.suffix);
    return out;
  };
  const OrderedJson single = around("A", 0);
  OrderedJson pair = single;
  for (const OrderedJson& part : around("B", 1)) pair.push_back(part);
  return {{"type", "TemplateProcessing"}, {"single", single}, {"pair", pair}, {"special_tokens", specials}};
}

}  // namespace

std::string tokenizer_json(const TokenizerParts& parts) {
  static_cast<void>(Tokenizer(parts));  // throws for parts that do not fit together
  OrderedJson added = OrderedJson::array(), vocabulary = OrderedJson::object(), merges = OrderedJson::array();
  for (const AddedToken& token : parts.added)
    added.push_back({{"id", token.id},
                     {"content", token.text},
                     {"single_word", false},
                     {"lstrip", false},
                     {"rstrip", false},
                     {"normalized", token.normalized},
                     {"special", token.special}});
  for (std::size_t id = 0; id < parts.tokens.size(); ++id)
    if (!parts.tokens[id].empty()) vocabulary[parts.tokens[id]] = id;
  for (const auto& [left, right] : parts.merges) merges.push_back(left + " " + right);
  const OrderedJson none, nfc = {{"type", "NFC"}};
  OrderedJson root = {{"version", "1.0"},
                      {"truncation", none},
                      {"padding", none},
                      {"added_tokens", std::move(added)},
                      {"normalizer", parts.nfc ? nfc : none},
                      {"pre_tokenizer", pre_tokenizer(parts.rule)},
                      {"post_processor", post_processor(parts)},
                      {"decoder", byte_level(true)}};
  root["model"] = {{"type", "BPE"},
                   {"dropout", none},
                   {"unk_token", none},
                   {"continuing_subword_prefix", none},
                   {"end_of_word_suffix", none},
                   {"fuse_unk", false},
                   {"byte_fallback", false},
                   {"ignore_merges", parts.ignore_merges},
                   {"vocab", std::move(vocabulary)},
                   {"merges", std::move(merges)}};
  return root.dump(1) + "\n";
}

void put_gguf(const TokenizerParts& parts, GgufMetadata& metadata) {
  static_cast<void>(Tokenizer(parts));
  check(parts.prefix.size() <= 1 && parts.suffix.size() <= 1,
        "[put_gguf] the tokenizer puts several tokens before or after a text, which GGUF cannot express");
  check(!parts.nfc || parts.rule == WordRule::qwen2,
        "[put_gguf] the tokenizer normalizes text to NFC, which GGUF has ", "for the rule of Qwen2 alone");
  const char* const pre = parts.rule == WordRule::gpt2     ? "gpt-2"
                          : parts.rule == WordRule::smollm ? "smollm"
                          : parts.rule == WordRule::llama3 ? "llama-bpe"
                          : parts.nfc                      ? "qwen2"
                                                           : "deepseek-r1-qwen";
  constexpr std::int32_t kNormal = 1, kControl = 3, kUserDefined = 4, kUnused = 5;
  std::vector<std::string> tokens = parts.tokens, merges;
  std::vector<std::int32_t> types;
  for (std::string& token : tokens) {
    types.push_back(token.empty() ? kUnused : kNormal);
    // Names of unused tokens must differ: llama.cpp's converter writes them in this way, too.
    if (token.empty()) token = "[PAD" + std::to_string(types.size() - 1) + "]";
  }
  for (const AddedToken& token : parts.added) {
    tokens[static_cast<std::size_t>(token.id)] = token.text;
    types[static_cast<std::size_t>(token.id)] = token.special ? kControl : kUserDefined;
  }
  for (const auto& [left, right] : parts.merges) merges.push_back(left + " " + right);
  metadata.set("tokenizer.ggml.model", std::string("gpt2"));
  metadata.set("tokenizer.ggml.pre", std::string(pre));
  metadata.set("tokenizer.ggml.tokens", GgufArray(std::move(tokens)));
  metadata.set("tokenizer.ggml.token_type", GgufArray(std::move(types)));
  metadata.set("tokenizer.ggml.merges", GgufArray(std::move(merges)));
  metadata.set("tokenizer.ggml.add_bos_token", !parts.prefix.empty());
  metadata.set("tokenizer.ggml.add_eos_token", !parts.suffix.empty());
  if (!parts.prefix.empty())
    metadata.set("tokenizer.ggml.bos_token_id", static_cast<std::uint32_t>(parts.prefix[0]));
  if (!parts.suffix.empty())
    metadata.set("tokenizer.ggml.eos_token_id", static_cast<std::uint32_t>(parts.suffix[0]));
}

}  // namespace tapestry::data
