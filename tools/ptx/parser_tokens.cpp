#include "tapestry/tools/ptx/parser_tokens.h"

namespace tapestry::ptx {

Token Tokens::expect(std::string_view text) {
  if (!peek().is(text)) fail(peek(), "expected " + quoted(text) + ", found " + quoted(peek().text));
  return next();
}

Token Tokens::expect_word(const char* what) {
  if (peek().kind != Token::kWord)
    fail(peek(), "expected " + std::string(what) + ", found " + quoted(peek().text));
  return next();
}

std::uint64_t Tokens::expect_number() {
  const Token token = next();
  std::uint64_t value = 0;
  std::uint8_t bytes = 0;
  if (token.kind != Token::kNumber || !parse_number(token.text, value, bytes) || bytes != 0)
    fail(token, "expected an integer, found " + quoted(token.text));
  return value;
}

std::uint32_t Tokens::expect_small() {
  const Token at = peek();
  const std::uint64_t value = expect_number();
  if (value > 0x7fffffff) fail(at, quoted(at.text) + " is too large");
  return static_cast<std::uint32_t>(value);
}

std::uint64_t Tokens::parse_immediate(std::uint8_t& bytes) {
  const bool minus = accept("-");
  const Token token = next();
  std::uint64_t value = kWarpSize;
  if (token.is("WARP_SZ")) return minus ? std::uint64_t{0} - value : value;
  if (token.kind != Token::kNumber || !parse_number(token.text, value, bytes))
    fail(token, "expected a number, found " + quoted(token.text));
  if (!minus) return value;
  if (bytes == 0) return std::uint64_t{0} - value;
  return value ^ (std::uint64_t{1} << (8 * bytes - 1));
}

void Tokens::skip_to_semicolon() {
  for (const Token begin = peek(); !accept(";");)
    if (next().kind == Token::kEnd) fail(begin, "expected ';' before the end of the text");
}

}  // namespace tapestry::ptx
