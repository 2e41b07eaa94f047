#pragma once
// Regular expressions for the names of modules, in time that is linear in the length of the name. Patterns
// come from files, and std::regex needs exponential time or a deep stack for some of them.
#include <bitset>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace tapestry::nn::detail {

/// A pattern in the syntax of Python's `re`: literals, `.`, `[...]`, `\d \w \s` and their opposites, escaped
/// punctuation, groups `(...)` and `(?:...)`, `|`, `* + ? {m,n}`, and the anchors `^` and `$`.
class NamePattern {
 public:
  /// Throws ValueError, with the position, for a pattern that is broken, needs other syntax (assertions,
  /// references, modifiers), or has more than 10,000 states.
  explicit NamePattern(const std::string& pattern);
  /// True if the pattern matches the whole name, as re.fullmatch() does.
  bool matches(std::string_view name) const;

  /// A state. `offset` and `other` are relative to the state.
  struct State {
    enum class Kind : std::uint8_t { bytes, split, jump, begin, end };
    Kind kind = Kind::bytes;
    int offset = 1, other = 1;
    std::bitset<256> bytes = {};
  };

 private:
  std::vector<State> states_;
};

}  // namespace tapestry::nn::detail
