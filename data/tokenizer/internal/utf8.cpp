#include "tapestry/data/tokenizer/internal/utf8.h"

#include <cstring>

namespace tapestry::data {

Utf8Unit read_utf8(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned first = byte(0);
  if (first < 0x80) return {1, true, false, first};
  if (first < 0xC2 || first > 0xF4) return {1, false, false, 0};
  const std::size_t length = first < 0xE0 ? 2 : first < 0xF0 ? 3 : 4;
  char32_t code = first & (0x7Fu >> length);
  // The second byte decides whether the form is overlong, a surrogate, or above U+10FFFF.
  const unsigned low = first == 0xE0 ? 0xA0 : first == 0xF0 ? 0x90 : 0x80;
  const unsigned high = first == 0xED ? 0x9F : first == 0xF4 ? 0x8F : 0xBF;
  for (std::size_t i = 1; i < length; ++i) {
    if (i == text.size()) return {i, false, true, 0};
    const unsigned b = byte(i);
    if (b < (i == 1 ? low : 0x80) || b > (i == 1 ? high : 0xBF)) return {i, false, false, 0};
    code = code << 6 | (b & 0x3F);
  }
  return {length, true, false, code};
}

std::size_t find_invalid_utf8(std::string_view text) {
  constexpr std::uint64_t kHighBits = 0x8080808080808080u;
  std::size_t at = 0;
  while (at < text.size()) {
    std::uint64_t word;
    while (at + sizeof word <= text.size()) {
      std::memcpy(&word, text.data() + at, sizeof word);
      if (word & kHighBits) break;
      at += sizeof word;
    }
    if (at == text.size()) break;
    const Utf8Unit unit = read_utf8(text.substr(at));
    if (!unit.valid) return at;
    at += unit.bytes;
  }
  return std::string_view::npos;
}

void append_utf8(std::string& text, char32_t code) {
  const auto put = [&](char32_t byte) { text += static_cast<char>(static_cast<unsigned char>(byte)); };
  if (code < 0x80) return put(code);
  if (code < 0x800) {
    put(0xC0 | code >> 6);
  } else {
    if (code < 0x10000) {
      put(0xE0 | code >> 12);
    } else {
      put(0xF0 | code >> 18);
      put(0x80 | (code >> 12 & 0x3F));
    }
    put(0x80 | (code >> 6 & 0x3F));
  }
  put(0x80 | (code & 0x3F));
}

void append_lossy(std::string& text, std::string_view bytes) {
  while (!bytes.empty()) {
    const Utf8Unit unit = read_utf8(bytes);
    if (unit.valid) text.append(bytes.substr(0, unit.bytes));
    else append_utf8(text, 0xFFFD);
    bytes.remove_prefix(unit.bytes);
  }
}

}  // namespace tapestry::data
