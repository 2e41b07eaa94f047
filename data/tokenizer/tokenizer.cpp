#include "tapestry/data/tokenizer/tokenizer.h"

#include <algorithm>
#include <array>
#include <bitset>
#include <unordered_map>

#include "tapestry/core/error.h"
#include "tapestry/data/tokenizer/internal/bpe.h"
#include "tapestry/data/tokenizer/internal/byte_alphabet.h"
#include "tapestry/data/tokenizer/internal/nfc.h"
#include "tapestry/data/tokenizer/internal/utf8.h"
#include "tapestry/data/tokenizer/internal/word_splitter.h"

namespace tapestry::data {

struct Tokenizer::State {
  explicit State(const TokenizerParts& parts);

  WordRule rule;
  WordSplitter splitter;
  bool ignore_merges, nfc;
  std::vector<std::string> bytes;                     // of each token
  std::vector<bool> special;                          // by id
  std::unordered_map<std::string_view, TokenId> ids;  // of `bytes`, without added tokens
  std::unordered_map<std::string_view, TokenId> added_ids;
  std::array<TokenId, 256> byte_tokens{};
  MergeTable merges;
  // whole[id]: the merges turn the bytes of this token into the token, so a word with these bytes needs none.
  std::vector<bool> whole;
  std::vector<AddedToken> added;
  // Added tokens that are found in the text, and those found in the normalized text.
  struct Finder {
    std::vector<std::pair<std::string, const AddedToken*>> tokens;  // as they are written, the longest first
    std::bitset<256> first;                                         // their first bytes
    const std::pair<std::string, const AddedToken*>* at(std::string_view text, bool parse_special) const;
  };
  Finder raw, normalized;
  std::vector<std::int64_t> prefix, suffix;

  void encode_words(std::string_view text, BytePairEncoder& encoder, std::vector<std::int64_t>& out) const;
  /// Calls fn with the parts of the text between the tokens of `finder`, whose ids it appends.
  template <class F>
  void between(const Finder& finder, std::string_view text, bool parse_special,
               std::vector<std::int64_t>& out, const F& fn) const;
};

namespace {

void check_id(std::int64_t id, std::size_t tokens, const char* what) {
  check<IndexError>(id >= 0 && static_cast<std::uint64_t>(id) < tokens, "[Tokenizer] ", what, " ", id,
                    " is out of range; the vocabulary has ", tokens, " tokens");
}

}  // namespace

Tokenizer::State::State(const TokenizerParts& parts)
    : rule(parts.rule),
      splitter(parts.rule),
      ignore_merges(parts.ignore_merges),
      nfc(parts.nfc),
      special(parts.tokens.size()),
      merges(parts.merges.size()),
      whole(parts.tokens.size()),
      added(parts.added),
      prefix(parts.prefix),
      suffix(parts.suffix) {
  check(parts.tokens.size() < UINT32_MAX, "[Tokenizer] a vocabulary of ", parts.tokens.size(),
        " tokens is too large");
  std::vector<bool> is_added(parts.tokens.size());
  for (const AddedToken& token : added) {
    check_id(token.id, parts.tokens.size(), "the id of an added token,");
    const auto id = static_cast<std::size_t>(token.id);
    check(!token.text.empty(), "[Tokenizer] the added token ", token.id, " is empty; remove it");
    is_added[id] = true;
    special[id] = token.special;
  }
  for (const std::vector<std::int64_t>* list : {&prefix, &suffix})
    for (const std::int64_t id : *list)
      check_id(id, parts.tokens.size(), "the id of a token around the text,");

  bytes.reserve(parts.tokens.size());
  for (std::size_t id = 0; id < parts.tokens.size(); ++id)
    bytes.push_back(is_added[id] ? parts.tokens[id] : from_byte_alphabet(parts.tokens[id]));
  for (const AddedToken& token : added) {
    const auto id = static_cast<std::size_t>(token.id);
    bytes[id] = token.text;
    check(added_ids.emplace(bytes[id], static_cast<TokenId>(id)).second, "[Tokenizer] the added token \"",
          token.text, "\" has two ids; remove one");
  }
  ids.reserve(bytes.size());
  for (std::size_t id = 0; id < bytes.size(); ++id) {
    // Vocabularies are padded with tokens without text. An added token of a vocabulary is a word, too.
    if (bytes[id].empty()) continue;
    const auto [other, fresh] = ids.emplace(bytes[id], static_cast<TokenId>(id));
    if (fresh) continue;
    check(is_added[id] || is_added[other->second], "[Tokenizer] tokens ", other->second, " and ", id,
          " have the same bytes; remove one");
    if (is_added[other->second]) other->second = static_cast<TokenId>(id);
  }
  std::string key(1, '\0');
  for (int b = 0; b < 256; ++b) {
    key[0] = static_cast<char>(b);
    const auto found = ids.find(key);
    byte_tokens[static_cast<std::size_t>(b)] = found == ids.end() ? kNoToken : found->second;
  }
  std::uint32_t rank = 0;
  for (const auto& [left, right] : parts.merges) {
    const std::string a = from_byte_alphabet(left), b = from_byte_alphabet(right);
    const auto first = ids.find(a), second = ids.find(b), result = ids.find(a + b);
    check(first != ids.end() && second != ids.end() && result != ids.end(), "[Tokenizer] merge ", rank,
          " of \"", left, "\" and \"", right, "\" refers to a token that is not in the vocabulary");
    merges.add(first->second, second->second, {rank++, result->second});
  }
  for (const AddedToken& token : added) {
    Finder& finder = token.normalized ? normalized : raw;
    finder.tokens.emplace_back(token.normalized && nfc ? to_nfc(token.text) : token.text, &token);
    finder.first.set(static_cast<unsigned char>(finder.tokens.back().first[0]));
  }
  for (Finder* const finder : {&raw, &normalized})
    std::stable_sort(finder->tokens.begin(), finder->tokens.end(),
                     [](const auto& a, const auto& b) { return a.first.size() > b.first.size(); });
  BytePairEncoder encoder(merges, byte_tokens);
  std::vector<TokenId> encoded;
  for (const auto& [text, id] : ids) {
    encoded.clear();
    if (!ignore_merges) encoder.encode(text, encoded);
    whole[id] = !special[id] && (ignore_merges || (encoded.size() == 1 && encoded[0] == id));
  }
}

void Tokenizer::State::encode_words(std::string_view text, BytePairEncoder& encoder,
                                    std::vector<std::int64_t>& out) const {
  splitter.split(text, [&](std::string_view word) {
    const auto found = ids.find(word);
    if (found != ids.end() && whole[found->second]) out.push_back(found->second);
    else encoder.encode(word, out);
  });
}

// The longest added token that `text` begins with, or null.
const std::pair<std::string, const AddedToken*>* Tokenizer::State::Finder::at(std::string_view text,
                                                                              bool parse_special) const {
  for (const auto& token : tokens)
    if ((parse_special || !token.second->special) && text.starts_with(token.first)) return &token;
  return nullptr;
}

template <class F>
void Tokenizer::State::between(const Finder& finder, std::string_view text, bool parse_special,
                               std::vector<std::int64_t>& out, const F& fn) const {
  std::size_t done = 0;
  for (std::size_t at = 0; !finder.tokens.empty() && at < text.size(); ++at) {
    if (!finder.first[static_cast<unsigned char>(text[at])]) continue;
    const auto* const token = finder.at(text.substr(at), parse_special);
    if (!token) continue;
    fn(text.substr(done, at - done));
    out.push_back(token->second->id);
    done = at + token->first.size();
    at = done - 1;
  }
  fn(text.substr(done));
}

Tokenizer::Tokenizer(const TokenizerParts& parts) : state_(std::make_shared<const State>(parts)) {}

std::vector<std::int64_t> Tokenizer::encode(std::string_view text, const EncodeOptions& options) const {
  const std::size_t invalid = find_invalid_utf8(text);
  check(invalid == std::string_view::npos, "[Tokenizer::encode] the text is not UTF-8 at byte ", invalid,
        "; convert it first");
  const State& s = *state_;
  std::vector<std::int64_t> out;
  out.reserve(text.size() / 3 + s.prefix.size() + s.suffix.size());
  if (options.add_special) out = s.prefix;
  BytePairEncoder encoder(s.merges, s.byte_tokens);
  s.between(s.raw, text, options.parse_special, out, [&](std::string_view part) {
    const std::string nfc = s.nfc ? to_nfc(part) : std::string();
    s.between(s.normalized, s.nfc ? nfc : part, options.parse_special, out,
              [&](std::string_view words) { s.encode_words(words, encoder, out); });
  });
  if (options.add_special) out.insert(out.end(), s.suffix.begin(), s.suffix.end());
  return out;
}

std::string Tokenizer::decode(std::span<const std::int64_t> ids, const DecodeOptions& options) const {
  std::string raw, text;
  for (const std::int64_t id : ids)
    if (const std::string& token = bytes(id); !options.skip_special || !is_special(id)) raw += token;
  append_lossy(text, raw);
  return text;
}

const std::string& Tokenizer::bytes(std::int64_t id) const {
  check_id(id, state_->bytes.size(), "token");
  return state_->bytes[static_cast<std::size_t>(id)];
}

std::optional<std::int64_t> Tokenizer::id_of(std::string_view bytes) const {
  for (const auto* map : {&state_->added_ids, &state_->ids})
    if (const auto found = map->find(bytes); found != map->end()) return found->second;
  return std::nullopt;
}

std::int64_t Tokenizer::vocab_size() const { return static_cast<std::int64_t>(state_->bytes.size()); }
bool Tokenizer::is_special(std::int64_t id) const {
  check_id(id, state_->bytes.size(), "token");
  return state_->special[static_cast<std::size_t>(id)];
}
WordRule Tokenizer::rule() const { return state_->rule; }
const std::vector<AddedToken>& Tokenizer::added() const { return state_->added; }
const std::vector<std::int64_t>& Tokenizer::prefix() const { return state_->prefix; }

std::string StreamDecoder::next(std::int64_t id) {
  const std::string& token = tokenizer_.bytes(id);
  if (options_.skip_special && tokenizer_.is_special(id)) return {};
  pending_ += token;
  std::string text;
  std::string_view rest = pending_;
  while (!rest.empty()) {
    const Utf8Unit unit = read_utf8(rest);
    if (unit.cut_off) break;
    append_lossy(text, rest.substr(0, unit.bytes));
    rest.remove_prefix(unit.bytes);
  }
  pending_.erase(0, pending_.size() - rest.size());
  return text;
}

std::string StreamDecoder::finish() {
  std::string text;
  append_lossy(text, pending_);
  pending_.clear();
  return text;
}

}  // namespace tapestry::data
