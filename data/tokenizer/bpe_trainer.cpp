#include "tapestry/data/tokenizer/bpe_trainer.h"

#include <algorithm>
#include <queue>
#include <set>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "tapestry/core/error.h"
#include "tapestry/data/tokenizer/internal/byte_alphabet.h"
#include "tapestry/data/tokenizer/internal/utf8.h"
#include "tapestry/data/tokenizer/internal/word_splitter.h"

namespace tapestry::data {
namespace {

using Id = std::uint32_t;
using Pair = std::uint64_t;  // the ids of two tokens; pairs compare as their ids do
Pair pair_of(Id left, Id right) { return Pair{left} << 32 | right; }

struct Word {
  std::vector<Id> ids;
  std::int64_t count = 0;
};

// A pair with the count that it had when it was queued.
struct Candidate {
  std::int64_t count = 0;
  Pair pair = 0;
  bool operator<(const Candidate& other) const {  // the greatest is taken first
    return count != other.count ? count < other.count : pair > other.pair;
  }
};

class Trainer {
 public:
  explicit Trainer(std::vector<Word> words) : words_(std::move(words)) {
    for (std::size_t w = 0; w < words_.size(); ++w)
      for (std::size_t i = 0; i + 1 < words_[w].ids.size(); ++i)
        change(pair_of(words_[w].ids[i], words_[w].ids[i + 1]), words_[w].count, w);
    queue_changed();
  }

  // The most frequent pair, unless none occurs min_count times.
  bool next(std::int64_t min_count, Pair& pair) {
    while (!queue_.empty()) {
      const Candidate top = queue_.top();
      queue_.pop();
      if (const std::int64_t now = counts_[top.pair]; now != top.count) {  // a merge has changed the count
        if (now > 0) queue_.push({now, top.pair});
        continue;
      }
      if (top.count < min_count) return false;
      pair = top.pair;
      return true;
    }
    return false;
  }

  void merge(Pair pair, Id merged) {
    const Id left = static_cast<Id>(pair >> 32), right = static_cast<Id>(pair);
    // In order, so that the result does not depend on the hash table.
    std::vector<std::size_t> at(places_[pair].begin(), places_[pair].end());
    places_.erase(pair);
    std::sort(at.begin(), at.end());
    for (const std::size_t w : at) {
      std::vector<Id>& ids = words_[w].ids;
      const std::int64_t n = words_[w].count;
      for (std::size_t i = 0; i + 1 < ids.size(); ++i) {
        if (ids[i] != left || ids[i + 1] != right) continue;
        if (i > 0) {
          change(pair_of(ids[i - 1], left), -n, w);
          change(pair_of(ids[i - 1], merged), n, w);
        }
        if (i + 2 < ids.size()) {
          change(pair_of(right, ids[i + 2]), -n, w);
          change(pair_of(merged, ids[i + 2]), n, w);
        }
        ids[i] = merged;
        ids.erase(ids.begin() + static_cast<std::ptrdiff_t>(i) + 1);
      }
    }
    counts_[pair] = 0;  // in "aaa", the merge has changed the count of its own pair
    queue_changed();
  }

 private:
  void change(Pair pair, std::int64_t by, std::size_t word) {
    counts_[pair] += by;
    if (by <= 0) return;
    places_[pair].insert(word);
    changed_.insert(pair);
  }
  void queue_changed() {
    for (const Pair pair : changed_)
      if (counts_[pair] > 0) queue_.push({counts_[pair], pair});
    changed_.clear();
  }

  std::vector<Word> words_;
  std::unordered_map<Pair, std::int64_t> counts_;
  std::unordered_map<Pair, std::unordered_set<std::size_t>> places_;  // the words that have a pair, or had it
  std::unordered_set<Pair> changed_;
  std::priority_queue<Candidate> queue_;
};

// The words of the text with their counts. `begins` maps bytes to ids.
std::vector<Word> count_words(std::string_view text, const BpeTrainOptions& o,
                              const std::vector<Id>& begins) {
  const WordSplitter splitter(o.rule);
  std::unordered_map<std::string_view, std::size_t> index;
  std::vector<Word> words;
  const auto add = [&](std::string_view part) {
    splitter.split(part, [&](std::string_view word) {
      const auto [at, fresh] = index.emplace(word, words.size());
      if (fresh) {
        words.emplace_back();
        for (const char c : word) words.back().ids.push_back(begins[static_cast<unsigned char>(c)]);
      }
      ++words[at->second].count;
    });
  };
  while (!text.empty()) {
    std::size_t end = text.size(), skip = 0;
    for (const std::string& special : o.special)
      if (const std::size_t at = text.find(special); at < end) end = at, skip = special.size();
    add(text.substr(0, end));
    text.remove_prefix(end + skip);
  }
  return words;
}

}  // namespace

TokenizerParts train_bpe(std::string_view text, const BpeTrainOptions& o) {
  const auto fixed = static_cast<std::int64_t>(o.special.size()) + 256;
  check(o.vocab_size >= fixed, "[train_bpe] vocab_size is ", o.vocab_size, ", but the 256 bytes and the ",
        o.special.size(), " control tokens need ", fixed);
  check(o.min_frequency > 0, "[train_bpe] min_frequency is ", o.min_frequency, "; it must be positive");
  const std::size_t invalid = find_invalid_utf8(text);
  check(invalid == std::string_view::npos, "[train_bpe] the text is not UTF-8 at byte ", invalid,
        "; convert it first");
  TokenizerParts parts;
  parts.rule = o.rule;
  for (const std::string& special : o.special) {
    check(!special.empty(), "[train_bpe] a control token is empty");
    check(std::find(parts.tokens.begin(), parts.tokens.end(), special) == parts.tokens.end(),
          "[train_bpe] the control token \"", special, "\" occurs twice");
    parts.added.push_back({static_cast<std::int64_t>(parts.tokens.size()), special, true});
    parts.tokens.push_back(special);
  }
  // Bytes get their ids in the order of the characters that stand for them, as in Hugging Face's trainer. The
  // order of UTF-8 is that of the characters.
  std::vector<std::pair<std::string, std::size_t>> alphabet;
  for (std::size_t b = 0; b < 256; ++b)
    alphabet.emplace_back(to_byte_alphabet(std::string(1, static_cast<char>(b))), b);
  std::sort(alphabet.begin(), alphabet.end());
  std::vector<Id> begins(256);
  for (const auto& [character, byte] : alphabet) {
    begins[byte] = static_cast<Id>(parts.tokens.size());
    parts.tokens.push_back(character);
  }

  Trainer trainer(count_words(text, o, begins));
  std::unordered_map<std::string, Id> ids;
  for (std::size_t id = 0; id < parts.tokens.size(); ++id) ids.emplace(parts.tokens[id], static_cast<Id>(id));
  for (Pair pair = 0; static_cast<std::int64_t>(parts.tokens.size()) < o.vocab_size;) {
    if (!trainer.next(o.min_frequency, pair)) break;
    const std::string left = parts.tokens[pair >> 32], right = parts.tokens[pair & UINT32_MAX];
    // Two pairs can give the same text, which then has one token.
    const auto [at, fresh] = ids.emplace(left + right, static_cast<Id>(parts.tokens.size()));
    if (fresh) parts.tokens.push_back(left + right);
    parts.merges.emplace_back(left, right);
    trainer.merge(pair, at->second);
  }
  return parts;
}

}  // namespace tapestry::data
