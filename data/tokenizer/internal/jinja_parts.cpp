#include "tapestry/data/tokenizer/internal/jinja_parts.h"

#include "tapestry/core/error.h"
#include "tapestry/data/tokenizer/internal/jinja.h"

namespace tapestry::data::detail {
namespace {

constexpr std::size_t kMaxJinja = 1 << 20;

}  // namespace

void unknown_jinja(std::string_view source) { fail("the part ", printable_jinja(source), " is unknown"); }

std::vector<JinjaPart> split_jinja(std::string_view jinja) {
  check(jinja.size() <= kMaxJinja, "it has ", jinja.size(), " bytes");
  if (jinja.ends_with('\n')) jinja.remove_suffix(1);
  std::vector<JinjaPart> parts;
  std::size_t at = 0;
  bool strip_left = false;  // of the next text
  const auto put_text = [&](std::string_view text, bool strip_right) {
    if (strip_left)
      while (!text.empty() && is_jinja_space(text.front())) text.remove_prefix(1);
    if (strip_right)
      while (!text.empty() && is_jinja_space(text.back())) text.remove_suffix(1);
    if (!text.empty()) parts.push_back({JinjaPart::text, text, text, {}});
  };
  while (true) {
    std::size_t open = jinja.find('{', at);
    while (
        open != std::string_view::npos &&
        (open + 1 >= jinja.size() || std::string_view("{%#").find(jinja[open + 1]) == std::string_view::npos))
      open = jinja.find('{', open + 1);
    if (open == std::string_view::npos) break;
    const char mark = jinja[open + 1];
    std::size_t begin = open + 2;
    const char first = begin < jinja.size() ? jinja[begin] : ' ';
    const bool signs = first == '-' || first == '+';
    std::string_view text = jinja.substr(at, open - at);
    if (mark != '{' && !signs) {  // lstrip_blocks
      std::size_t line = text.size();
      while (line > 0 && (text[line - 1] == ' ' || text[line - 1] == '\t')) --line;
      if (line == 0 ? at == 0 || jinja[at - 1] == '\n' : text[line - 1] == '\n') text = text.substr(0, line);
    }
    put_text(text, first == '-');
    begin += signs;
    const std::string_view close = mark == '{' ? "}}" : mark == '%' ? "%}" : "#}";
    std::size_t end = begin;
    for (char quote = 0; end < jinja.size(); ++end) {
      const char c = jinja[end];
      if (mark == '#') {
        if (jinja.substr(end, 2) == close) break;
      } else if (quote != 0) {
        if (c == '\\') ++end;
        else if (c == quote) quote = 0;
      } else if (c == '"' || c == '\'') {
        quote = c;
      } else if (jinja.substr(end, 2) == close) {
        break;
      }
    }
    if (end >= jinja.size()) unknown_jinja(jinja.substr(open));
    const char last = end > begin ? jinja[end - 1] : ' ';
    const bool ends_signed = last == '-' || (last == '+' && mark != '{');
    const std::string_view code = jinja.substr(begin, end - begin - ends_signed);
    at = end + 2;
    strip_left = last == '-';
    if (mark != '{' && !ends_signed && at < jinja.size() && jinja[at] == '\n') ++at;  // trim_blocks
    if (mark == '#') continue;
    JinjaPart part{
        mark == '{' ? JinjaPart::output : JinjaPart::statement, code, jinja.substr(open, end + 2 - open), {}};
    if (mark == '%') {
      std::size_t from = 0;
      while (from < code.size() && is_jinja_space(code[from])) ++from;
      std::size_t to = from;
      while (to < code.size() && is_jinja_word(code[to])) ++to;
      part.keyword = code.substr(from, to - from);
      part.code = code.substr(to);
    }
    parts.push_back(part);
  }
  put_text(jinja.substr(at), false);
  return parts;
}

void link_branches(std::vector<JinjaPart>& parts) {
  std::vector<std::vector<std::size_t>> open;  // the branches of each block
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const std::string_view keyword = parts[i].keyword;
    if (keyword == "if" || keyword == "for") {
      open.push_back({i});
      if (open.size() > static_cast<std::size_t>(kMaxJinjaDepth)) unknown_jinja(parts[i].source);
    } else if (keyword == "elif" || keyword == "else" || keyword == "endif" || keyword == "endfor") {
      if (open.empty()) unknown_jinja(parts[i].source);
      const bool loop = parts[open.back()[0]].keyword == "for";
      if (loop ? keyword == "endif" || keyword == "elif" : keyword == "endfor")
        unknown_jinja(parts[i].source);
      parts[open.back().back()].next = i;
      open.back().push_back(i);
      if (keyword.starts_with("end")) {
        for (const std::size_t branch : open.back()) parts[branch].end = i;
        open.pop_back();
      }
    }
  }
  if (!open.empty()) unknown_jinja(parts[open.back()[0]].source);
}

}  // namespace tapestry::data::detail
