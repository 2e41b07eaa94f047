#include "tapestry/tools/ptx/lexer.h"

#include <charconv>
#include <cstring>
#include <string>

#include "tapestry/tools/ptx/error.h"

namespace tapestry::ptx {
namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }
bool starts_word(char c) { return is_letter(c) || c == '_' || c == '$' || c == '%' || c == '.'; }
bool continues_word(char c) { return starts_word(c) || is_digit(c); }

}  // namespace

void Lexer::skip_blanks() {
  while (at_ < text_.size()) {
    const char c = text_[at_];
    if (c == '\n') {
      ++line_;
      ++at_;
    } else if (c == ' ' || c == '\t' || c == '\r' || c == '\f' || c == '\0') {
      ++at_;
    } else if (c == '/' && at_ + 1 < text_.size() && text_[at_ + 1] == '/') {
      at_ = std::min(text_.find('\n', at_), text_.size());
    } else if (c == '/' && at_ + 1 < text_.size() && text_[at_ + 1] == '*') {
      const std::size_t end = text_.find("*/", at_ + 2);
      if (end == text_.npos) throw ParseError(line_, "a comment that begins here has no end");
      for (; at_ < end; ++at_) line_ += text_[at_] == '\n';
      at_ = end + 2;
    } else {
      return;
    }
  }
}

void Lexer::advance() {
  skip_blanks();
  token_.line = line_;
  if (at_ >= text_.size()) {
    token_.kind = Token::kEnd;
    token_.text = "the end of the text";
    return;
  }
  const std::size_t begin = at_;
  const char c = text_[at_];
  if (is_digit(c)) {
    while (at_ < text_.size() && (is_digit(text_[at_]) || is_letter(text_[at_]) || text_[at_] == '.')) ++at_;
    token_.kind = Token::kNumber;
  } else if (starts_word(c)) {
    while (at_ < text_.size()) {
      if (continues_word(text_[at_])) ++at_;
      else if (text_.compare(at_, 2, "::") == 0) at_ += 2;  // .shared::cta
      else break;
    }
    token_.kind = Token::kWord;
  } else if (c == '"') {
    const std::size_t end = text_.find('"', at_ + 1);
    if (end == text_.npos) throw ParseError(line_, "a string that begins here has no end");
    token_.kind = Token::kString;
    token_.text = text_.substr(begin + 1, end - begin - 1);
    for (const char d : token_.text) line_ += d == '\n';
    at_ = end + 1;
    return;
  } else {
    ++at_;
    token_.kind = Token::kPunctuation;
  }
  token_.text = text_.substr(begin, at_ - begin);
}

bool parse_number(std::string_view text, std::uint64_t& value, std::uint8_t& bytes) {
  bytes = 0;
  int base = 10;
  if (text.size() > 1 && text.back() == 'U') text.remove_suffix(1);
  if (text.size() > 1 && text[0] == '0') {
    const char kind = text[1];
    if (kind == 'f' || kind == 'F' || kind == 'd' || kind == 'D') {
      const bool is_double = kind == 'd' || kind == 'D';
      bytes = is_double ? 8 : 4;
      if (text.size() != std::size_t{2} + 2 * bytes) return false;
      const auto end = text.data() + text.size();
      const auto read = std::from_chars(text.data() + 2, end, value, 16);
      return read.ec == std::errc() && read.ptr == end;
    }
    if (kind == 'x' || kind == 'X') base = 16;
    else if (kind == 'b' || kind == 'B') base = 2;
    else base = 8;
    text.remove_prefix(base == 8 ? 1 : 2);
  }
  if (text.find('.') != text.npos && base == 10) {
    double number = 0;
    const auto read = std::from_chars(text.data(), text.data() + text.size(), number);
    if (read.ec != std::errc() || read.ptr != text.data() + text.size()) return false;
    bytes = 8;
    std::memcpy(&value, &number, 8);
    return true;
  }
  const auto end = text.data() + text.size();
  const auto read = std::from_chars(text.data(), end, value, base);
  return read.ec == std::errc() && read.ptr == end;
}

}  // namespace tapestry::ptx
