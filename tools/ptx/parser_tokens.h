#pragma once
// What all parts of the parser read: words, numbers and punctuation.
#include <cstdint>
#include <string>
#include <string_view>

#include "tapestry/tools/ptx/error.h"
#include "tapestry/tools/ptx/lexer.h"

namespace tapestry::ptx {

inline constexpr std::uint64_t kWarpSize = 32;  // WARP_SZ

inline std::string quoted(std::string_view text) { return "'" + std::string(text.substr(0, 120)) + "'"; }

/// The tokens of a text. What is expected but missing throws a ParseError.
class Tokens {
 public:
  explicit Tokens(std::string_view text) : lexer_(text) {}

  [[noreturn]] static void fail(const Token& at, const std::string& what) { throw ParseError(at.line, what); }
  const Token& peek() const { return lexer_.peek(); }
  Token next() { return lexer_.next(); }
  bool accept(std::string_view text) {
    if (!peek().is(text)) return false;
    next();
    return true;
  }
  Token expect(std::string_view text);
  Token expect_word(const char* what);
  std::uint64_t expect_number();
  std::uint32_t expect_small();
  /// A number with its sign, or WARP_SZ. `bytes` becomes that of parse_number().
  std::uint64_t parse_immediate(std::uint8_t& bytes);
  void skip_to_semicolon();

 protected:
  Lexer lexer_;
};

}  // namespace tapestry::ptx
