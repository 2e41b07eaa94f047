#include "tapestry/data/tokenizer/internal/byte_alphabet.h"

#include <array>

#include "tapestry/data/tokenizer/internal/utf8.h"

namespace tapestry::data {
namespace {

constexpr char32_t kEnd = 0x100 + 68;

struct Alphabet {
  std::array<char32_t, 256> code{};
  std::array<int, kEnd> byte{};
};

constexpr Alphabet kAlphabet = [] {
  Alphabet a;
  a.byte.fill(-1);
  char32_t next = 0x100;
  for (unsigned b = 0; b < 256; ++b) {
    const bool printable = (b >= 0x21 && b <= 0x7E) || (b >= 0xA1 && b <= 0xAC) || b >= 0xAE;
    a.code[b] = printable ? b : next++;
    a.byte[a.code[b]] = static_cast<int>(b);
  }
  return a;
}();

}  // namespace

std::string from_byte_alphabet(std::string_view text) {
  std::string bytes;
  for (std::string_view rest = text; !rest.empty();) {
    const Utf8Unit unit = read_utf8(rest);
    if (!unit.valid || unit.code >= kEnd || kAlphabet.byte[unit.code] < 0) return std::string(text);
    bytes += static_cast<char>(static_cast<unsigned char>(kAlphabet.byte[unit.code]));
    rest.remove_prefix(unit.bytes);
  }
  return bytes;
}

std::string to_byte_alphabet(std::string_view bytes) {
  std::string text;
  for (const char byte : bytes) append_utf8(text, kAlphabet.code[static_cast<unsigned char>(byte)]);
  return text;
}

}  // namespace tapestry::data
