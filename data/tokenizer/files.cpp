// Reads the tokenizer files of Hugging Face and of GPT-2.
#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "tapestry/core/error.h"
#include "tapestry/data/formats/text.h"
#include "tapestry/data/tokenizer/internal/byte_alphabet.h"
#include "tapestry/data/tokenizer/internal/patterns.h"
#include "tapestry/data/tokenizer/parts.h"

namespace tapestry::data {
namespace {

using Json = nlohmann::json;

constexpr std::size_t kMaxFile = 256 << 20;
constexpr std::int64_t kMaxTokens = 1 << 20;

// A file and the functions that report what is wrong with it.
class File {
 public:
  explicit File(const std::string& path) : path_(path), file_("Tokenizer", path) {
    require(file_.size() <= kMaxFile, "it has ", file_.size(), " bytes; tokenizer files have at most ",
            kMaxFile);
  }
  std::string_view text() const { return {file_.data(), file_.size()}; }

  template <class... Parts>
  void require(bool ok, const Parts&... parts) const {
    check<IoError>(ok, "[Tokenizer] ", path_, ": ", parts...);
  }
  Json json() const {
    const std::string_view all = text();
    Json value = Json::parse(all.begin(), all.end(), nullptr, false);
    require(value.is_object(), "it is not a JSON object");
    return value;
  }
  // A member of an object, or null.
  const Json& member(const Json& object, const char* name) const {
    static const Json none;
    const auto found = object.find(name);
    return found == object.end() ? none : *found;
  }
  std::int64_t id(const Json& value, const std::string& token) const {
    require(value.is_number_integer() && value.is_number_unsigned() &&
                value.get<std::uint64_t>() < static_cast<std::uint64_t>(kMaxTokens),
            "the id of \"", token, "\" is not an integer from 0 to ", kMaxTokens - 1);
    return static_cast<std::int64_t>(value.get<std::uint64_t>());
  }
  std::string string(const Json& value, const char* what) const {
    require(value.is_string(), what, " is not a string");
    return value.get<std::string>();
  }
  // True if a flag is set. A missing one is not.
  bool flag(const Json& object, const char* name) const {
    const Json& value = member(object, name);
    require(value.is_null() || value.is_boolean(), name, " is not true or false");
    return value.is_boolean() && value.get<bool>();
  }

  void put_vocabulary(const Json& vocabulary, TokenizerParts& parts) const {
    require(vocabulary.is_object(), "the vocabulary is not an object from tokens to ids");
    for (const auto& [token, value] : vocabulary.items()) put_token(token, id(value, token), parts);
  }
  void put_token(const std::string& token, std::int64_t number, TokenizerParts& parts) const {
    const auto at = static_cast<std::size_t>(number);
    if (at >= parts.tokens.size()) parts.tokens.resize(at + 1);
    require(parts.tokens[at].empty() || parts.tokens[at] == token, "\"", parts.tokens[at], "\" and \"", token,
            "\" have the same id, ", number);
    parts.tokens[at] = token;
  }
  // A merge is written as "left right". Neither token contains a space, which the alphabet writes as U+0120.
  void put_merge(std::string_view line, TokenizerParts& parts) const {
    const std::size_t space = line.find(' ');
    require(space != 0 && space != std::string_view::npos && space + 1 < line.size() &&
                line.find(' ', space + 1) == std::string_view::npos,
            "merge ", parts.merges.size(), " is not two tokens with a space between them");
    parts.merges.emplace_back(line.substr(0, space), line.substr(space + 1));
  }
  Tokenizer make(const TokenizerParts& parts) const {
    try {
      return Tokenizer(parts);
    } catch (const ValueError& error) {
      fail<IoError>("[Tokenizer] ", path_, ": ", error.what());
    } catch (const IndexError& error) {
      fail<IoError>("[Tokenizer] ", path_, ": ", error.what());
    }
  }

 private:
  std::string path_;
  MappedFile file_;
};

WordRule word_rule(const File& file, const Json& pre_tokenizer) {
  const auto type = [&](const Json& step) {
    return file.string(file.member(step, "type"), "the type of a pre-tokenizer");
  };
  std::vector<Json> steps;
  file.require(pre_tokenizer.is_object(), "there is no pre_tokenizer; byte-level BPE has one");
  if (type(pre_tokenizer) == "Sequence") {
    const Json& list = file.member(pre_tokenizer, "pretokenizers");
    file.require(list.is_array(), "the pre-tokenizers are not a list");
    steps.assign(list.begin(), list.end());
  } else {
    steps.push_back(pre_tokenizer);
  }
  for (const Json& step : steps) file.require(step.is_object(), "a pre-tokenizer is not an object");
  file.require(!steps.empty() && type(steps.back()) == "ByteLevel",
               "the last pre-tokenizer is not ByteLevel; only byte-level BPE is supported");
  file.require(!file.flag(steps.back(), "add_prefix_space"),
               "add_prefix_space is true, which is not supported; put the space into the text");
  const Json& use_regex = file.member(steps.back(), "use_regex");
  file.require(use_regex.is_null() || use_regex.is_boolean(), "use_regex is not true or false");
  const bool regex = use_regex.is_null() || use_regex.get<bool>();
  if (steps.size() == 1) {
    file.require(regex,
                 "ByteLevel has use_regex false, and there is no other rule that splits text into words");
    return WordRule::gpt2;
  }
  const Json& first = steps[0];
  if (steps.size() == 2 && type(first) == "Digits" && file.flag(first, "individual_digits") && regex)
    return WordRule::smollm;
  if (steps.size() == 2 && type(first) == "Split" && !regex && !file.flag(first, "invert") &&
      file.member(first, "behavior") == "Isolated" && file.member(first, "pattern").is_object()) {
    const Json& pattern = file.member(file.member(first, "pattern"), "Regex");
    if (pattern == kLlama3Pattern) return WordRule::llama3;
    if (pattern == kQwen2Pattern) return WordRule::qwen2;
  }
  std::string text = first.dump(-1, ' ', false, Json::error_handler_t::replace);
  if (text.size() > 300) text = text.substr(0, 300) + "...";
  file.require(false, "the pre-tokenizer ", text,
               " is not supported; those of GPT-2, SmolLM, Llama 3 and Qwen2 are");
  return WordRule::gpt2;
}

// Whether the normalizer is NFC, which may stand in a sequence.
bool is_nfc(const File& file, const Json& normalizer) {
  if (normalizer.is_null()) return false;
  file.require(normalizer.is_object(), "the normalizer is not an object");
  const Json& type = file.member(normalizer, "type");
  if (type == "NFC") return true;
  const Json& steps = file.member(normalizer, "normalizers");
  bool all = type == "Sequence" && steps.is_array();
  if (all)
    for (const Json& step : steps) all = all && step.is_object() && file.member(step, "type") == "NFC";
  file.require(all, "the normalizer is not supported; NFC is; normalize the text first, and remove it");
  return !steps.empty();
}

// The ids around the text, from a post-processor of type TemplateProcessing or a sequence with one.
void put_template(const File& file, const Json& step, TokenizerParts& parts) {
  if (step.is_null()) return;
  file.require(step.is_object(), "the post_processor is not an object");
  const Json& type = file.member(step, "type");
  if (type == "ByteLevel") return;  // changes offsets only
  if (type == "Sequence") {
    const Json& steps = file.member(step, "processors");
    file.require(steps.is_array() && steps.size() <= 8, "the post-processors are not a list of at most 8");
    for (const Json& part : steps) {
      file.require(part.is_object() && file.member(part, "type") != "Sequence",
                   "a post-processor is not an object of a supported type");
      put_template(file, part, parts);
    }
    return;
  }
  const Json& single = file.member(step, "single");
  file.require(type == "TemplateProcessing" && single.is_array(),
               "the post-processor is not supported; TemplateProcessing and ByteLevel are");
  bool before = true;
  for (const Json& part : single) {
    file.require(part.is_object(), "a part of the template is not an object");
    if (part.contains("Sequence")) {
      before = false;
      continue;
    }
    const Json& token = file.member(part, "SpecialToken");
    file.require(token.is_object(), "a part of the template is neither the text nor a special token");
    const std::string name = file.string(file.member(token, "id"), "a special token of the template");
    const auto found = std::find_if(parts.added.begin(), parts.added.end(),
                                    [&](const AddedToken& t) { return t.text == name; });
    file.require(found != parts.added.end(), "the template has \"", name, "\", which is not an added token");
    (before ? parts.prefix : parts.suffix).push_back(found->id);
  }
}

TokenizerParts parts_of(const File& file) {
  const Json root = file.json();
  const Json& model = file.member(root, "model");
  file.require(model.is_object(), "there is no model");
  const Json& type = file.member(model, "type");
  file.require(type.is_null() || type == "BPE", "the model is not BPE; only byte-level BPE is supported");
  for (const char* const option :
       {"dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix"}) {
    const Json& value = file.member(model, option);
    file.require(value.is_null() || value == "" || std::string_view(option) == "unk_token", option,
                 " is set, which byte-level BPE does not use");
  }
  file.require(!file.flag(model, "byte_fallback"),
               "byte_fallback is true: this is a model of SentencePiece, which is not supported");
  TokenizerParts parts;
  parts.nfc = is_nfc(file, file.member(root, "normalizer"));
  parts.rule = word_rule(file, file.member(root, "pre_tokenizer"));
  parts.ignore_merges = file.flag(model, "ignore_merges");
  file.put_vocabulary(file.member(model, "vocab"), parts);
  const Json& merges = file.member(model, "merges");
  file.require(merges.is_array(), "the merges are not a list");
  for (const Json& merge : merges) {
    if (merge.is_array()) {
      file.require(merge.size() == 2 && merge[0].is_string() && merge[1].is_string(), "merge ",
                   parts.merges.size(), " is not a pair of tokens");
      parts.merges.emplace_back(merge[0].get<std::string>(), merge[1].get<std::string>());
    } else {
      file.put_merge(file.string(merge, "a merge"), parts);
    }
  }
  const Json& added = file.member(root, "added_tokens");
  file.require(added.is_null() || added.is_array(), "the added tokens are not a list");
  for (const Json& token : added) {
    file.require(token.is_object(), "an added token is not an object");
    const std::string text = file.string(file.member(token, "content"), "the content of an added token");
    const std::int64_t id = file.id(file.member(token, "id"), text);
    for (const char* const option : {"single_word", "lstrip", "rstrip"})
      file.require(!file.flag(token, option), option, " of the added token \"", text,
                   "\" is true, which is not supported");
    file.put_token(text, id, parts);
    const bool special = file.flag(token, "special");
    const bool normalized = token.contains("normalized") ? file.flag(token, "normalized") : !special;
    parts.added.push_back({id, text, special, normalized});
  }
  put_template(file, file.member(root, "post_processor"), parts);
  return parts;
}

}  // namespace

TokenizerParts read_tokenizer_parts(const std::string& path) { return parts_of(File(path)); }

Tokenizer Tokenizer::from_file(const std::string& path) {
  const File file(path);
  return file.make(parts_of(file));
}

Tokenizer Tokenizer::from_gpt2_files(const std::string& vocabulary, const std::string& merges) {
  TokenizerParts parts;
  const File tokens(vocabulary), lines(merges);
  tokens.put_vocabulary(tokens.json(), parts);
  for (std::string_view rest = lines.text(); !rest.empty();) {
    const std::size_t end = std::min(rest.find('\n'), rest.size());
    std::string_view line = rest.substr(0, end);
    rest.remove_prefix(std::min(end + 1, rest.size()));
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (line.empty() || line.starts_with("#version")) continue;
    lines.put_merge(line, parts);
  }
  constexpr const char* kEnd = "<|endoftext|>";
  const auto found = std::find(parts.tokens.begin(), parts.tokens.end(), kEnd);
  if (found != parts.tokens.end()) parts.added.push_back({found - parts.tokens.begin(), kEnd, true});
  return tokens.make(parts);
}

}  // namespace tapestry::data
