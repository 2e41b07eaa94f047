#pragma once
// UTF-8 as RFC 3629 defines it: no surrogates, no overlong forms, nothing above U+10FFFF.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace tapestry::data {

struct Utf8Unit {
  std::size_t bytes = 0;  // of the character; if it is invalid, of its longest valid beginning, at least 1
  bool valid = false;
  bool cut_off = false;  // the text ended before the character was complete
  char32_t code = 0;
};
/// Reads the character at the beginning of `text`, which is not empty.
Utf8Unit read_utf8(std::string_view text);
/// The position of the first byte that is not part of a valid character, or npos.
std::size_t find_invalid_utf8(std::string_view text);
void append_utf8(std::string& text, char32_t code);
/// Appends `bytes`, with U+FFFD in place of each invalid sequence, as the Unicode standard recommends
/// (section 3.9, "maximal subparts").
void append_lossy(std::string& text, std::string_view bytes);

}  // namespace tapestry::data
