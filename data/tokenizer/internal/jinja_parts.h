#pragma once
// A template as texts and tags.
#include <cstdint>
#include <string_view>
#include <vector>

namespace tapestry::data::detail {

inline constexpr int kMaxJinjaDepth = 64;  // of blocks, and of expressions

struct JinjaPart {
  enum Kind : std::uint8_t { text, output, statement };
  Kind kind;
  std::string_view code;          // without the marks
  std::string_view source;        // with them
  std::string_view keyword;       // of a statement
  std::size_t next = 0, end = 0;  // of `if`, `elif`, `else` and `for`: the next branch, and the last part
};

inline bool is_jinja_space(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }
inline bool is_jinja_word(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
}

/// Throws ValueError with the beginning of `source`.
[[noreturn]] void unknown_jinja(std::string_view source);
/// Splits a template into texts and tags, with trim_blocks and lstrip_blocks.
std::vector<JinjaPart> split_jinja(std::string_view jinja);
/// Finds the branches of each `if` and `for`.
void link_branches(std::vector<JinjaPart>& parts);

}  // namespace tapestry::data::detail
