#pragma once
// Splits PTX text into tokens.
#include <cstdint>
#include <string_view>

namespace tapestry::ptx {

struct Token {
  enum Kind : std::uint8_t {
    kWord,    // names, directives, opcodes, registers: "add.s32", ".reg", "%r1", "$L__BB0_1"
    kNumber,  // "12", "0x1fU", "0f3F800000", "9.0"
    kString,  // without its quotes
    kPunctuation,
    kEnd,
  };
  Kind kind = kEnd;
  int line = 1;
  std::string_view text;
  bool is(std::string_view other) const { return kind != kString && text == other; }
};

/// Reads one token after another. `text` must outlive it and its tokens.
class Lexer {
 public:
  explicit Lexer(std::string_view text) : text_(text) { advance(); }

  const Token& peek() const { return token_; }
  Token next() {
    const Token token = token_;
    advance();
    return token;
  }

 private:
  void advance();
  void skip_blanks();

  std::string_view text_;
  std::size_t at_ = 0;
  int line_ = 1;
  Token token_;
};

/// The value of a PTX number and, for the bits of a float (0f..., 0d...), its bytes; otherwise `bytes` is 0.
/// False if it is none.
bool parse_number(std::string_view text, std::uint64_t& value, std::uint8_t& bytes);

}  // namespace tapestry::ptx
