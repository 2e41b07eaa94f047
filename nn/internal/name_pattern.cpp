#include "tapestry/nn/internal/name_pattern.h"

#include <cctype>
#include <optional>
#include <utility>

#include "tapestry/core/error.h"

namespace tapestry::nn::detail {
namespace {

using State = NamePattern::State;
using Kind = State::Kind;
using Part = std::vector<State>;  // enters at its first state, and leaves behind its last

constexpr std::size_t kMostStates = 10'000;
constexpr int kMostDepth = 100;
constexpr int kMostRepeats = 1'000;

Part one(Kind kind, int offset = 1, int other = 1) {
  Part part(1);
  part[0].kind = kind, part[0].offset = offset, part[0].other = other;
  return part;
}
Part bytes_of(const std::bitset<256>& bytes) {
  Part part = one(Kind::bytes);
  part[0].bytes = bytes;
  return part;
}
int length(const Part& part) { return static_cast<int>(part.size()); }

std::bitset<256> where(int (*is)(int)) {
  std::bitset<256> bytes;
  for (int c = 0; c < 128; ++c) bytes[static_cast<std::size_t>(c)] = is(c) != 0;
  return bytes;
}

std::size_t first_of(const std::bitset<256>& bytes) {
  std::size_t c = 0;
  while (c < 255 && !bytes[c]) ++c;
  return c;
}

class Parser {
 public:
  explicit Parser(const std::string& text) : text_(text) {}
  Part parse() {
    Part all = alternatives(0);
    require(at_ == text_.size(), "an unmatched )");
    return all;
  }

 private:
  void require(bool ok, const char* what) const {
    check(ok, "[lora] the pattern \"", text_, "\" has ", what, " at position ", at_,
          "; use literals, ., [...], \\d, \\w, \\s, (...), |, *, +, ?, {m,n}, ^ and $");
  }
  bool more() const { return at_ < text_.size(); }
  bool take(char c) {
    if (!more() || text_[at_] != c) return false;
    ++at_;
    return true;
  }
  void append(Part& to, const Part& part) const {
    require(to.size() + part.size() <= kMostStates, "too many states");
    to.insert(to.end(), part.begin(), part.end());
  }

  Part alternatives(int depth) {
    require(depth < kMostDepth, "too many nested groups");
    Part left = sequence(depth);
    while (take('|')) {
      const Part right = sequence(depth);
      Part both = one(Kind::split, 1, length(left) + 2);
      append(both, left);
      append(both, one(Kind::jump, length(right) + 1));
      append(both, right);
      left = std::move(both);
    }
    return left;
  }
  Part sequence(int depth) {
    Part all;
    while (more() && text_[at_] != '|' && text_[at_] != ')') append(all, repeated(depth));
    return all;
  }
  Part repeated(int depth) {
    const Part each = atom(depth);
    int least = 1, most = 1;
    if (take('*')) least = 0, most = -1;
    else if (take('+')) most = -1;
    else if (take('?')) least = 0;
    else if (take('{')) {
      least = number(0);
      most = take(',') ? number(-1) : least;
      require(take('}') && (most < 0 || least <= most), "a broken {m,n}");
    } else return each;
    take('?');  // what is matched first makes no difference to a match of the whole name
    require(!more() || (text_[at_] != '*' && text_[at_] != '+' && text_[at_] != '{'), "a repeated repeat");
    Part all;
    for (int i = 0; i < least; ++i) append(all, each);
    if (most < 0) {
      append(all, one(Kind::split, 1, length(each) + 2));
      append(all, each);
      append(all, one(Kind::jump, -length(each) - 1));
    }
    for (int i = least; i < most; ++i) {
      append(all, one(Kind::split, 1, length(each) + 1));
      append(all, each);
    }
    return all;
  }
  int number(int fallback) {
    if (!more() || !std::isdigit(static_cast<unsigned char>(text_[at_]))) return fallback;
    int value = 0;
    while (more() && std::isdigit(static_cast<unsigned char>(text_[at_]))) {
      value = value * 10 + (text_[at_] - '0');
      require(value <= kMostRepeats, "too many repeats");
      ++at_;
    }
    return value;
  }
  Part atom(int depth) {
    if (take('(')) {
      if (take('?')) require(take(':'), "a group of an unsupported kind");
      Part inside = alternatives(depth + 1);
      require(take(')'), "a group without its )");
      return inside;
    }
    if (take('^')) return one(Kind::begin);
    if (take('$')) return one(Kind::end);
    if (take('.')) {
      std::bitset<256> bytes;
      bytes.set();
      bytes.reset('\n');
      return bytes_of(bytes);
    }
    if (take('[')) return bytes_of(set());
    require(text_[at_] != '*' && text_[at_] != '+' && text_[at_] != '?' && text_[at_] != '{',
            "nothing to repeat");
    return bytes_of(single());
  }
  // A literal byte, or the bytes of a class such as \d.
  std::bitset<256> single() {
    require(more(), "an end where a character is expected");
    const bool escaped = take('\\');
    require(more(), "a backslash at its end");
    const char c = text_[at_];
    if (escaped && std::isalnum(static_cast<unsigned char>(c))) {
      std::bitset<256> bytes;
      const int low = std::tolower(static_cast<unsigned char>(c));
      require(low == 'd' || low == 'w' || low == 's', "an unsupported escape");
      if (low == 'd') bytes = where(std::isdigit);
      if (low == 's') bytes = where(std::isspace);
      if (low == 'w') bytes = where(std::isalnum), bytes.set('_');
      ++at_;
      return low == c ? bytes : ~bytes;
    }
    ++at_;
    std::bitset<256> bytes;
    bytes.set(static_cast<unsigned char>(c));
    return bytes;
  }
  std::bitset<256> set() {
    const bool inverted = take('^');
    std::bitset<256> all;
    bool first = true;
    while (first || !more() || text_[at_] != ']') {
      first = false;
      const std::size_t begin = at_;
      const std::bitset<256> from = single();
      if (more() && text_[at_] == '-' && at_ + 1 < text_.size() && text_[at_ + 1] != ']') {
        ++at_;
        const std::bitset<256> to = single();
        require(from.count() == 1 && to.count() == 1, "a range between classes");
        const std::size_t low = first_of(from), high = first_of(to);
        if (low > high) at_ = begin;
        require(low <= high, "a range that ends before it begins");
        for (std::size_t c = low; c <= high; ++c) all.set(c);
      } else {
        all |= from;
      }
    }
    ++at_;
    return inverted ? ~all : all;
  }

  const std::string& text_;
  std::size_t at_ = 0;
};

}  // namespace

NamePattern::NamePattern(const std::string& pattern) : states_(Parser(pattern).parse()) {}

// Thompson's simulation: the set of all states that the text so far can lead to.
bool NamePattern::matches(std::string_view name) const {
  const std::size_t last = states_.size();
  std::vector<bool> now(last + 1), next(last + 1);
  std::vector<std::size_t> waiting;
  const auto enter = [&](std::vector<bool>& set, std::size_t state, std::size_t position) {
    waiting.push_back(state);
    while (!waiting.empty()) {
      const std::size_t s = waiting.back();
      waiting.pop_back();
      if (set[s]) continue;
      set[s] = true;
      if (s == last || states_[s].kind == Kind::bytes) continue;
      const auto go = [&](int offset) {
        waiting.push_back(static_cast<std::size_t>(static_cast<std::int64_t>(s) + offset));
      };
      const Kind kind = states_[s].kind;
      if (kind == Kind::begin && position != 0) continue;
      if (kind == Kind::end && position != name.size()) continue;
      go(kind == Kind::split || kind == Kind::jump ? states_[s].offset : 1);
      if (kind == Kind::split) go(states_[s].other);
    }
  };
  enter(now, 0, 0);
  for (std::size_t i = 0; i < name.size(); ++i) {
    next.assign(last + 1, false);
    for (std::size_t s = 0; s < last; ++s)
      if (now[s] && states_[s].kind == Kind::bytes && states_[s].bytes[static_cast<unsigned char>(name[i])])
        enter(next, s + 1, i + 1);
    std::swap(now, next);
  }
  return now[last];
}

}  // namespace tapestry::nn::detail
