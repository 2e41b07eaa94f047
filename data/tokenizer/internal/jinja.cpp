#include "tapestry/data/tokenizer/internal/jinja.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <utility>

#include "tapestry/core/error.h"
#include "tapestry/data/tokenizer/chat.h"

namespace tapestry::data {
namespace {

constexpr std::size_t kMaxJinja = 1 << 20, kMaxOutput = 1 << 20;
constexpr int kMaxSteps = 100'000, kMaxDepth = 64;

struct JinjaValue;
using JinjaList = std::vector<JinjaValue>;
using JinjaDict = std::map<std::string, JinjaValue, std::less<>>;
struct JinjaValue {
  enum Kind : std::uint8_t { undefined, none, boolean, integer, string, list, dict };
  Kind kind = undefined;
  std::int64_t number = 0;  // of booleans and integers
  std::string text;
  std::shared_ptr<JinjaList> items;    // of a list
  std::shared_ptr<JinjaDict> members;  // of a dict

  static JinjaValue of(bool value) { return {boolean, value ? 1 : 0, {}, {}, {}}; }
  static JinjaValue of(std::int64_t value) { return {integer, value, {}, {}, {}}; }
  static JinjaValue of(std::string value) { return {string, 0, std::move(value), {}, {}}; }
  static JinjaValue of(JinjaList value) {
    return {list, 0, {}, std::make_shared<JinjaList>(std::move(value)), {}};
  }
  static JinjaValue of(JinjaDict value) {
    return {dict, 0, {}, {}, std::make_shared<JinjaDict>(std::move(value))};
  }
  bool truth() const {
    switch (kind) {
      case undefined:
      case none:
        return false;
      case string:
        return !text.empty();
      case list:
        return !items->empty();
      case dict:
        return !members->empty();
      default:
        return number != 0;
    }
  }
  bool operator==(const JinjaValue& other) const {
    const bool numbers =
        (kind == boolean || kind == integer) && (other.kind == boolean || other.kind == integer);
    if (numbers) return number == other.number;
    return kind == other.kind && kind != list && kind != dict && text == other.text;
  }
};

struct JinjaPart {
  enum Kind : std::uint8_t { text, output, statement };
  Kind kind;
  std::string_view code;          // without the marks
  std::string_view source;        // with them
  std::string_view keyword;       // of a statement
  std::size_t next = 0, end = 0;  // of `if`, `elif`, `else` and `for`: the next branch, and the last part
};

bool is_space(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }
bool is_word(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
}

[[noreturn]] void unknown_part(std::string_view source) {
  std::string shown(source.substr(0, 160));
  if (shown.size() < source.size()) shown += "...";
  fail("the part ", shown, " is unknown");
}

// Splits a template into texts and tags, with trim_blocks and lstrip_blocks.
std::vector<JinjaPart> split_jinja(std::string_view jinja) {
  check(jinja.size() <= kMaxJinja, "it has ", jinja.size(), " bytes");
  if (jinja.ends_with('\n')) jinja.remove_suffix(1);
  std::vector<JinjaPart> parts;
  std::size_t at = 0;
  bool strip_left = false;  // of the next text
  const auto put_text = [&](std::string_view text, bool strip_right) {
    if (strip_left)
      while (!text.empty() && is_space(text.front())) text.remove_prefix(1);
    if (strip_right)
      while (!text.empty() && is_space(text.back())) text.remove_suffix(1);
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
    if (end >= jinja.size()) unknown_part(jinja.substr(open));
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
      while (from < code.size() && is_space(code[from])) ++from;
      std::size_t to = from;
      while (to < code.size() && is_word(code[to])) ++to;
      part.keyword = code.substr(from, to - from);
      part.code = code.substr(to);
    }
    parts.push_back(part);
  }
  put_text(jinja.substr(at), false);
  return parts;
}

// Finds the branches of each `if` and `for`.
void link_branches(std::vector<JinjaPart>& parts) {
  std::vector<std::vector<std::size_t>> open;  // the branches of each block
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const std::string_view keyword = parts[i].keyword;
    if (keyword == "if" || keyword == "for") {
      open.push_back({i});
      if (open.size() > static_cast<std::size_t>(kMaxDepth)) unknown_part(parts[i].source);
    } else if (keyword == "elif" || keyword == "else" || keyword == "endif" || keyword == "endfor") {
      if (open.empty()) unknown_part(parts[i].source);
      const bool loop = parts[open.back()[0]].keyword == "for";
      if (loop ? keyword == "endif" || keyword == "elif" : keyword == "endfor") unknown_part(parts[i].source);
      parts[open.back().back()].next = i;
      open.back().push_back(i);
      if (keyword.starts_with("end")) {
        for (const std::size_t branch : open.back()) parts[branch].end = i;
        open.pop_back();
      }
    }
  }
  if (!open.empty()) unknown_part(parts[open.back()[0]].source);
}

class JinjaRun {
 public:
  JinjaRun(std::vector<JinjaPart> parts, const JinjaContext& context) : parts_(std::move(parts)) {
    JinjaList messages;
    for (const ChatMessage& m : context.messages)
      messages.push_back(JinjaValue::of(
          JinjaDict{{"role", JinjaValue::of(m.role)}, {"content", JinjaValue::of(m.content)}}));
    scopes_.push_back({{"messages", JinjaValue::of(std::move(messages))},
                       {"add_generation_prompt", JinjaValue::of(context.add_generation_prompt)},
                       {"bos_token", JinjaValue::of(context.bos_token)},
                       {"eos_token", JinjaValue::of(context.eos_token)},
                       {"tools", {JinjaValue::none, 0, {}, {}, {}}},
                       {"documents", {JinjaValue::none, 0, {}, {}, {}}}});
  }
  std::string all() {
    run(0, parts_.size());
    return std::move(out_);
  }

 private:
  void run(std::size_t begin, std::size_t end);
  void run_for(std::size_t at);
  void run_set();

  // ---- expressions: each function reads from code_ at at_. While skip_ > 0 nothing is computed. ----
  [[noreturn]] void unknown() const { unknown_part(source_); }
  void require(bool ok) const {
    if (!ok && skip_ == 0) unknown();
  }
  void start(const JinjaPart& part) { code_ = part.code, source_ = part.source, at_ = 0; }
  void space() {
    while (at_ < code_.size() && is_space(code_[at_])) ++at_;
  }
  bool sign(std::string_view s) {
    space();
    if (code_.substr(at_, s.size()) != s) return false;
    at_ += s.size();
    return true;
  }
  std::string_view peek_word() {
    space();
    std::size_t to = at_;
    while (to < code_.size() && is_word(code_[to])) ++to;
    return code_.substr(at_, to - at_);
  }
  bool word(std::string_view w) {
    if (peek_word() != w) return false;
    at_ += w.size();
    return true;
  }
  std::string name() {
    const std::string_view w = peek_word();
    if (w.empty() || (w[0] >= '0' && w[0] <= '9')) unknown();
    at_ += w.size();
    return std::string(w);
  }
  void finish() {
    space();
    if (at_ != code_.size()) unknown();
  }
  JinjaValue expression();
  JinjaValue disjunction();
  JinjaValue conjunction();
  JinjaValue negation();
  JinjaValue comparison();
  JinjaValue sum();
  JinjaValue joined();
  JinjaValue unary();
  JinjaValue primary();
  JinjaValue postfix(JinjaValue value);
  JinjaValue filter(const JinjaValue& value);
  JinjaValue test(const JinjaValue& value);
  JinjaValue subscript(const JinjaValue& value);
  JinjaValue method(const JinjaValue& value, const std::string& called);
  JinjaValue function(const std::string& called);
  struct Arguments {
    JinjaList plain;
    JinjaDict named;
  };
  Arguments arguments();  // after the opening parenthesis
  std::string written(const JinjaValue& value) const {
    switch (value.kind) {
      case JinjaValue::string:
        return value.text;
      case JinjaValue::integer:
        return std::to_string(value.number);
      case JinjaValue::boolean:
        return value.number ? "True" : "False";
      case JinjaValue::none:
        return "None";
      case JinjaValue::undefined:
        return "";
      default:
        require(false);
        return "";
    }
  }
  const JinjaValue* find(std::string_view name) const {
    for (auto scope = scopes_.rbegin(); scope != scopes_.rend(); ++scope)
      if (const auto found = scope->find(name); found != scope->end()) return &found->second;
    return nullptr;
  }
  void step() {
    if (++steps_ > kMaxSteps || out_.size() > kMaxOutput) unknown();
  }

  std::vector<JinjaPart> parts_;
  std::vector<JinjaDict> scopes_;
  std::string out_;
  std::string_view code_, source_;
  std::size_t at_ = 0;
  int skip_ = 0, steps_ = 0, depth_ = 0;
};

// Counts nested expressions.
struct Depth {
  explicit Depth(int& depth) : depth_(depth) { ++depth_; }
  ~Depth() { --depth_; }
  Depth(const Depth&) = delete;
  Depth& operator=(const Depth&) = delete;
  int& depth_;
};

JinjaValue JinjaRun::expression() {
  const Depth deeper(depth_);
  step();
  if (depth_ > kMaxDepth) unknown();
  // `a if condition else b`: a is read first and, if the condition is false, computed for nothing.
  const std::size_t begin = at_;
  ++skip_;
  disjunction();
  --skip_;
  if (!word("if")) {
    at_ = begin;
    return disjunction();
  }
  const bool chosen = disjunction().truth();
  const std::size_t behind = at_;
  JinjaValue value;
  if (chosen) {
    at_ = begin;
    value = disjunction();
    at_ = behind;
  }
  if (word("else")) {
    skip_ += chosen;
    JinjaValue other = expression();
    skip_ -= chosen;
    if (!chosen) value = std::move(other);
  }
  return value;
}

JinjaValue JinjaRun::disjunction() {
  JinjaValue value = conjunction();
  while (word("or")) {
    const bool known = value.truth();
    skip_ += known;
    JinjaValue other = conjunction();
    skip_ -= known;
    if (!known) value = std::move(other);
  }
  return value;
}

JinjaValue JinjaRun::conjunction() {
  JinjaValue value = negation();
  while (word("and")) {
    const bool known = !value.truth();
    skip_ += known;
    JinjaValue other = negation();
    skip_ -= known;
    if (!known) value = std::move(other);
  }
  return value;
}

JinjaValue JinjaRun::negation() {
  bool result = false, any = false;
  while (word("not")) result = !result, any = true;
  JinjaValue value = comparison();
  return any ? JinjaValue::of(value.truth() != result) : value;
}

JinjaValue JinjaRun::comparison() {
  JinjaValue left = sum();
  while (true) {
    const std::size_t before = at_;
    bool inverse = false;
    if (word("not")) inverse = true;
    if (word("in")) {
      const JinjaValue in = sum();
      bool found = false;
      if (in.kind == JinjaValue::string) {
        require(left.kind == JinjaValue::string);
        found = in.text.find(left.text) != std::string::npos;
      } else if (in.kind == JinjaValue::dict) {
        found = left.kind == JinjaValue::string && in.members->contains(left.text);
      } else {
        require(in.kind == JinjaValue::list);
        if (in.items)
          for (const JinjaValue& item : *in.items) found = found || item == left;
      }
      left = JinjaValue::of(found != inverse);
      continue;
    }
    at_ = before;
    if (sign("==") || sign("!=")) {
      const bool equal = code_[at_ - 2] == '=';
      const JinjaValue right = sum();
      require(left.kind != JinjaValue::list && left.kind != JinjaValue::dict);
      left = JinjaValue::of((left == right) == equal);
      continue;
    }
    if (sign("<") || sign(">")) {
      const bool less = code_[at_ - 1] == '<', or_equal = sign("=");
      const JinjaValue right = sum();
      require(left.kind == JinjaValue::integer && right.kind == JinjaValue::integer);
      const std::int64_t a = less ? left.number : right.number, b = less ? right.number : left.number;
      left = JinjaValue::of(or_equal ? a <= b : a < b);
      continue;
    }
    return left;
  }
}

JinjaValue JinjaRun::sum() {
  JinjaValue left = joined();
  while (true) {
    space();
    const char c = at_ < code_.size() ? code_[at_] : ' ';
    if (c != '+' && c != '-') return left;
    ++at_;
    const JinjaValue right = joined();
    if (c == '+' && left.kind == JinjaValue::string && right.kind == JinjaValue::string) {
      left.text += right.text;
      require(left.text.size() <= kMaxOutput);
      continue;
    }
    require(left.kind == JinjaValue::integer && right.kind == JinjaValue::integer);
    std::int64_t result = 0;
    require(!(c == '+' ? __builtin_add_overflow(left.number, right.number, &result)
                       : __builtin_sub_overflow(left.number, right.number, &result)));
    left = JinjaValue::of(result);
  }
}

JinjaValue JinjaRun::joined() {
  JinjaValue left = unary();
  while (true) {
    if (sign("~")) {
      left = JinjaValue::of(written(left) + written(unary()));
      require(left.text.size() <= kMaxOutput);
    } else if (sign("%")) {
      const JinjaValue right = unary();
      require(left.kind == JinjaValue::integer && right.kind == JinjaValue::integer && right.number > 0);
      if (skip_ == 0) left = JinjaValue::of((left.number % right.number + right.number) % right.number);
    } else {
      return left;
    }
  }
}

JinjaValue JinjaRun::unary() {
  const Depth deeper(depth_);
  if (depth_ > kMaxDepth) unknown();
  if (sign("-")) {
    const JinjaValue value = unary();
    require(value.kind == JinjaValue::integer && value.number != INT64_MIN);
    return JinjaValue::of(value.kind == JinjaValue::integer && value.number != INT64_MIN ? -value.number
                                                                                         : std::int64_t{0});
  }
  return postfix(primary());
}

JinjaValue JinjaRun::primary() {
  space();
  const char c = at_ < code_.size() ? code_[at_] : '\0';
  if (c == '"' || c == '\'') {
    std::string text;
    while (at_ < code_.size() && (code_[at_] == '"' || code_[at_] == '\'')) {  // adjacent literals are one
      const char quote = code_[at_++];
      for (; at_ < code_.size() && code_[at_] != quote; ++at_) {
        if (code_[at_] != '\\') {
          text += code_[at_];
          continue;
        }
        if (++at_ == code_.size()) unknown();
        const char escaped = code_[at_];
        constexpr std::string_view kFrom = "nrt\\'\"", kTo = "\n\r\t\\'\"";
        const std::size_t known = kFrom.find(escaped);
        if (known == std::string_view::npos) unknown();
        text += kTo[known];
      }
      if (at_++ >= code_.size()) unknown();
      space();
    }
    return JinjaValue::of(std::move(text));
  }
  if (c >= '0' && c <= '9') {
    std::int64_t number = 0;
    for (const char digit : peek_word()) {
      if (digit < '0' || digit > '9' || number > INT32_MAX) unknown();
      number = 10 * number + (digit - '0');
    }
    at_ += peek_word().size();
    return JinjaValue::of(number);
  }
  if (sign("(")) {
    JinjaValue value = expression();
    if (!sign(")")) unknown();
    return value;
  }
  if (sign("[")) {
    JinjaList items;
    while (!sign("]")) {
      items.push_back(expression());
      if (!sign(",") && (space(), at_ >= code_.size() || code_[at_] != ']')) unknown();
    }
    return JinjaValue::of(std::move(items));
  }
  const std::string called = name();
  if (called == "true" || called == "True") return JinjaValue::of(true);
  if (called == "false" || called == "False") return JinjaValue::of(false);
  if (called == "none" || called == "None") return {JinjaValue::none, 0, {}, {}, {}};
  if (sign("(")) return function(called);
  if (const JinjaValue* const value = find(called)) return *value;
  // transformers has these functions, and templates ask whether they are defined.
  if (called == "strftime_now" || called == "raise_exception") return JinjaValue::of(std::string("function"));
  return {};
}

JinjaRun::Arguments JinjaRun::arguments() {
  Arguments all;
  while (!sign(")")) {
    const std::size_t before = at_;
    const std::string_view w = peek_word();
    at_ += w.size();
    if (!w.empty() && sign("=") && !sign("=")) {
      const std::string key(w);
      all.named[key] = expression();
    } else {
      at_ = before;
      all.plain.push_back(expression());
    }
    if (!sign(",") && (space(), at_ >= code_.size() || code_[at_] != ')')) unknown();
  }
  return all;
}

JinjaValue JinjaRun::postfix(JinjaValue value) {
  while (true) {
    if (sign(".")) {
      const std::string member = name();
      if (sign("(")) {
        value = method(value, member);
      } else {
        require(value.kind == JinjaValue::dict);
        if (value.kind != JinjaValue::dict) continue;
        const auto found = value.members->find(member);
        JinjaValue next = found == value.members->end() ? JinjaValue() : found->second;
        value = std::move(next);
      }
    } else if (sign("[")) {
      value = subscript(value);
    } else if (sign("|")) {
      value = filter(value);
    } else if (word("is")) {
      value = test(value);
    } else {
      return value;
    }
  }
}

JinjaValue JinjaRun::subscript(const JinjaValue& value) {
  JinjaValue from, to;
  bool slice = false;
  if (!sign(":")) {
    from = expression();
    slice = sign(":");
  } else {
    slice = true;
  }
  if (!slice || !sign("]")) {
    if (slice) to = expression();
    if (!sign("]")) unknown();
  }
  if (skip_ > 0) return {};
  if (!slice && value.kind == JinjaValue::dict) {
    require(from.kind == JinjaValue::string);
    const auto found = value.members->find(from.text);
    return found == value.members->end() ? JinjaValue() : found->second;
  }
  require(value.kind == JinjaValue::list && (slice || from.kind == JinjaValue::integer));
  const auto size = static_cast<std::int64_t>(value.items->size());
  const auto bound = [&](const JinjaValue& at, std::int64_t fallback) {
    if (at.kind == JinjaValue::undefined || at.kind == JinjaValue::none) return fallback;
    require(at.kind == JinjaValue::integer);
    return std::clamp<std::int64_t>(at.number < 0 ? at.number + size : at.number, 0, size);
  };
  if (slice) {
    const std::int64_t begin = bound(from, 0), end = std::max(bound(to, size), begin);
    return JinjaValue::of(JinjaList(value.items->begin() + begin, value.items->begin() + end));
  }
  const std::int64_t at = from.number < 0 ? from.number + size : from.number;
  return at >= 0 && at < size ? (*value.items)[static_cast<std::size_t>(at)] : JinjaValue();
}

JinjaValue JinjaRun::method(const JinjaValue& value, const std::string& called) {
  const Arguments given = arguments();
  if (skip_ > 0) return {};
  if (value.kind == JinjaValue::dict && called == "get" && given.plain.size() == 1) {
    const auto found = value.members->find(given.plain[0].text);
    return found == value.members->end() ? JinjaValue{JinjaValue::none, 0, {}, {}, {}} : found->second;
  }
  require(value.kind == JinjaValue::string);
  if (called == "strip" && given.plain.empty()) return JinjaValue::of(strip_unicode_space(value.text));
  const bool one = given.plain.size() == 1 && given.plain[0].kind == JinjaValue::string;
  if (called == "startswith" && one) return JinjaValue::of(value.text.starts_with(given.plain[0].text));
  if (called == "endswith" && one) return JinjaValue::of(value.text.ends_with(given.plain[0].text));
  unknown();
}

JinjaValue JinjaRun::function(const std::string& called) {
  Arguments given = arguments();
  if (skip_ > 0) return {};
  const bool one = given.plain.size() == 1 && given.plain[0].kind == JinjaValue::string;
  if (called == "strftime_now" && one) return JinjaValue::of("<" + given.plain[0].text + ">");
  if (called == "namespace" && given.plain.empty()) return JinjaValue::of(std::move(given.named));
  if (called == "raise_exception" && one)
    fail("the part ", source_, " raises the exception: ", given.plain[0].text);
  unknown();
}

JinjaValue JinjaRun::filter(const JinjaValue& value) {
  const std::string called = name();
  const Arguments given = sign("(") ? arguments() : Arguments();
  if (skip_ > 0) return {};
  if (called == "default" && given.plain.size() == 1) {
    if (value.kind == JinjaValue::undefined) return given.plain[0];
    return value;
  }
  if (!given.plain.empty() || !given.named.empty()) unknown();
  if (called == "trim") return JinjaValue::of(strip_unicode_space(written(value)));
  if (called == "string") return JinjaValue::of(written(value));
  if (called == "length" || called == "count") {
    if (value.kind == JinjaValue::list) return JinjaValue::of(static_cast<std::int64_t>(value.items->size()));
    if (value.kind == JinjaValue::dict)
      return JinjaValue::of(static_cast<std::int64_t>(value.members->size()));
    std::int64_t characters = 0;
    for (const char c : written(value)) characters += (static_cast<unsigned char>(c) & 0xc0) != 0x80;
    return JinjaValue::of(characters);
  }
  if ((called == "first" || called == "last") && value.kind == JinjaValue::list) {
    if (value.items->empty()) return {};
    return called == "first" ? value.items->front() : value.items->back();
  }
  unknown();
}

JinjaValue JinjaRun::test(const JinjaValue& value) {
  const bool inverse = word("not");
  const std::string asked = name();
  const auto kind = value.kind;
  bool result = false;
  if (asked == "defined") result = kind != JinjaValue::undefined;
  else if (asked == "undefined") result = kind == JinjaValue::undefined;
  else if (asked == "none") result = kind == JinjaValue::none;
  else if (asked == "string") result = kind == JinjaValue::string;
  else if (asked == "mapping") result = kind == JinjaValue::dict;
  else if (asked == "iterable" || asked == "sequence")
    result = kind == JinjaValue::string || kind == JinjaValue::list || kind == JinjaValue::dict;
  else if (asked == "true" || asked == "false")
    result = kind == JinjaValue::boolean && (value.number != 0) == (asked == "true");
  else if (asked == "boolean") result = kind == JinjaValue::boolean;
  else if (asked == "number") result = kind == JinjaValue::integer || kind == JinjaValue::boolean;
  else unknown();
  return JinjaValue::of(result != inverse);
}

void JinjaRun::run_set() {
  const std::string variable = name();
  std::string member;
  if (sign(".")) member = name();
  if (!sign("=")) unknown();
  JinjaValue value = expression();
  finish();
  if (member.empty()) {
    scopes_.back()[variable] = std::move(value);
    return;
  }
  const JinjaValue* const target = find(variable);
  require(target && target->kind == JinjaValue::dict);
  (*target->members)[member] = std::move(value);
}

void JinjaRun::run_for(std::size_t at) {
  std::vector<std::string> names{name()};
  while (sign(",")) names.push_back(name());
  if (!word("in") || names.size() > 1) unknown();
  const JinjaValue all = disjunction();
  finish();
  require(all.kind == JinjaValue::list);
  const std::vector<JinjaValue> items = *all.items;
  const std::size_t body = parts_[at].next;
  for (std::size_t i = 0; i < items.size(); ++i) {
    JinjaDict loop{{"index0", JinjaValue::of(static_cast<std::int64_t>(i))},
                   {"index", JinjaValue::of(static_cast<std::int64_t>(i) + 1)},
                   {"length", JinjaValue::of(static_cast<std::int64_t>(items.size()))},
                   {"first", JinjaValue::of(i == 0)},
                   {"last", JinjaValue::of(i + 1 == items.size())}};
    if (i > 0) loop["previtem"] = items[i - 1];
    if (i + 1 < items.size()) loop["nextitem"] = items[i + 1];
    scopes_.push_back({{names[0], items[i]}, {"loop", JinjaValue::of(std::move(loop))}});
    run(at + 1, body);
    scopes_.pop_back();
  }
  if (items.empty() && body != parts_[at].end) run(body + 1, parts_[at].end);
}

void JinjaRun::run(std::size_t begin, std::size_t end) {
  for (std::size_t i = begin; i < end; ++i) {
    const JinjaPart part = parts_[i];
    if (part.kind == JinjaPart::text) {
      out_ += part.code;
      step();
      continue;
    }
    start(part);
    step();
    if (part.kind == JinjaPart::output) {
      const std::string text = written(expression());
      finish();
      out_ += text;
    } else if (part.keyword == "set") {
      run_set();
    } else if (part.keyword == "if") {
      std::size_t branch = i;
      while (branch != part.end) {
        const JinjaPart& b = parts_[branch];
        start(b);
        bool taken = b.keyword == "else";
        if (!taken) taken = expression().truth();
        finish();
        if (taken) {
          run(branch + 1, b.next);
          break;
        }
        branch = b.next;
      }
      i = part.end;
    } else if (part.keyword == "for") {
      run_for(i);
      i = part.end;
    } else if (part.keyword != "generation" && part.keyword != "endgeneration") {
      unknown();
    }
  }
}

}  // namespace

std::string render_jinja(std::string_view jinja, const JinjaContext& context) {
  std::vector<JinjaPart> parts = split_jinja(jinja);
  link_branches(parts);
  return JinjaRun(std::move(parts), context).all();
}

std::string strip_unicode_space(std::string_view text) {
  // The characters of str.isspace(), in UTF-8.
  static constexpr std::string_view kSpaces[] = {
      "\t",           "\n",           "\v",           "\f",           "\r",
      "\x1c",         "\x1d",         "\x1e",         "\x1f",         " ",
      "\xc2\x85",     "\xc2\xa0",     "\xe1\x9a\x80", "\xe2\x80\x80", "\xe2\x80\x81",
      "\xe2\x80\x82", "\xe2\x80\x83", "\xe2\x80\x84", "\xe2\x80\x85", "\xe2\x80\x86",
      "\xe2\x80\x87", "\xe2\x80\x88", "\xe2\x80\x89", "\xe2\x80\x8a", "\xe2\x80\xa8",
      "\xe2\x80\xa9", "\xe2\x80\xaf", "\xe2\x81\x9f", "\xe3\x80\x80"};
  for (bool more = true; more;) {
    more = false;
    for (const std::string_view space : kSpaces) {
      if (text.starts_with(space)) text.remove_prefix(space.size()), more = true;
      if (text.ends_with(space)) text.remove_suffix(space.size()), more = true;
    }
  }
  return std::string(text);
}

}  // namespace tapestry::data
