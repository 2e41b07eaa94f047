#include <algorithm>

#include "tapestry/core/error.h"
#include "tapestry/data/tokenizer/internal/jinja.h"
#include "tapestry/data/tokenizer/internal/jinja_run.h"

namespace tapestry::data::detail {
namespace {

// Counts nested expressions.
struct Depth {
  explicit Depth(int& depth) : depth_(depth) { ++depth_; }
  ~Depth() { --depth_; }
  Depth(const Depth&) = delete;
  Depth& operator=(const Depth&) = delete;
  int& depth_;
};

}  // namespace

JinjaValue JinjaRun::expression() {
  const Depth deeper(depth_);
  step();
  if (depth_ > kMaxJinjaDepth) unknown();
  // `a if condition else b`: a is read first and, if the condition is false, computed for nothing.
  const std::size_t begin = at_;
  ++skip_;
  disjunction();
  --skip_;
  count(at_ - begin);
  if (!word("if")) {
    if (skip_ > 0) return {};
    at_ = begin;
    return disjunction();
  }
  const bool chosen = disjunction().truth() && skip_ == 0;
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
  if (any) return JinjaValue::of(value.truth() != result);
  return value;
}

JinjaValue JinjaRun::comparison() {
  JinjaValue left = sum();
  while (true) {
    const std::size_t before = at_;
    bool inverse = false;
    if (word("not")) inverse = true;
    if (word("in")) {
      const JinjaValue in = sum();
      if (skip_ > 0) continue;
      bool found = false;
      if (in.kind == JinjaValue::string) {
        require(left.kind == JinjaValue::string);
        count(left.text.size() * in.text.size());
        found = in.text.find(left.text) != std::string::npos;
      } else if (in.kind == JinjaValue::dict) {
        found = left.kind == JinjaValue::string && in.members->contains(left.text);
      } else {
        require(in.kind == JinjaValue::list);
        for (const JinjaValue& item : *in.items) {
          count(1 + std::min(item.text.size(), left.text.size()));
          found = found || item == left;
        }
      }
      left = JinjaValue::of(found != inverse);
      continue;
    }
    at_ = before;
    if (sign("==") || sign("!=")) {
      const bool equal = code_[at_ - 2] == '=';
      const JinjaValue right = sum();
      if (skip_ > 0) continue;
      require(left.kind != JinjaValue::list && left.kind != JinjaValue::dict);
      left = JinjaValue::of((left == right) == equal);
      continue;
    }
    if (sign("<") || sign(">")) {
      const bool less = code_[at_ - 1] == '<', or_equal = sign("=");
      const JinjaValue right = sum();
      if (skip_ > 0) continue;
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
    if (skip_ > 0) continue;
    if (c == '+' && left.kind == JinjaValue::string && right.kind == JinjaValue::string) {
      require(left.text.size() + right.text.size() <= kMaxJinjaText);
      left.text += right.text;
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
      const JinjaValue right = unary();
      if (skip_ > 0) continue;
      if (left.kind != JinjaValue::string) left = JinjaValue::of(written(left));
      const std::string more = written(right);
      require(left.text.size() + more.size() <= kMaxJinjaText);
      left.text += more;
    } else if (sign("%")) {
      const JinjaValue right = unary();
      if (skip_ > 0) continue;
      require(left.kind == JinjaValue::integer && right.kind == JinjaValue::integer && right.number > 0);
      const std::int64_t rest = left.number % right.number;
      left = JinjaValue::of(rest < 0 ? rest + right.number : rest);
    } else {
      return left;
    }
  }
}

JinjaValue JinjaRun::unary() {
  const Depth deeper(depth_);
  if (depth_ > kMaxJinjaDepth) unknown();
  if (sign("-")) {
    const JinjaValue value = unary();
    if (skip_ > 0) return {};
    require(value.kind == JinjaValue::integer && value.number != INT64_MIN);
    return JinjaValue::of(-value.number);
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
    if (skip_ > 0) return {};
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
    if (skip_ > 0) return {};
    return bounded(JinjaValue::of(std::move(items)));
  }
  const std::string called = name();
  if (called == "true" || called == "True") return JinjaValue::of(true);
  if (called == "false" || called == "False") return JinjaValue::of(false);
  if (called == "none" || called == "None") return {JinjaValue::none, 0, {}, {}, {}};
  if (sign("(")) return function(called);
  if (skip_ > 0) return {};
  if (const JinjaValue* const value = find(called)) return copy(*value);
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
        if (skip_ > 0) continue;
        require(value.kind == JinjaValue::dict);
        const auto found = value.members->find(member);
        JinjaValue next = found == value.members->end() ? JinjaValue() : copy(found->second);
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
    return found == value.members->end() ? JinjaValue() : copy(found->second);
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
    JinjaList items;
    for (std::int64_t i = begin; i < end; ++i)
      items.push_back(copy((*value.items)[static_cast<std::size_t>(i)]));
    return JinjaValue::of(std::move(items));
  }
  const std::int64_t at = from.number < 0 ? from.number + size : from.number;
  return at >= 0 && at < size ? copy((*value.items)[static_cast<std::size_t>(at)]) : JinjaValue();
}

JinjaValue JinjaRun::method(const JinjaValue& value, const std::string& called) {
  const Arguments given = arguments();
  if (skip_ > 0) return {};
  if (value.kind == JinjaValue::dict && called == "get" && given.plain.size() == 1) {
    const auto found = value.members->find(given.plain[0].text);
    return found == value.members->end() ? JinjaValue{JinjaValue::none, 0, {}, {}, {}} : copy(found->second);
  }
  require(value.kind == JinjaValue::string);
  if (called == "strip" && given.plain.empty()) return trimmed(value.text);
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
  if (called == "namespace" && given.plain.empty()) return bounded(JinjaValue::of(std::move(given.named)));
  if (called == "raise_exception" && one)
    fail("the part ", printable_jinja(source_),
         " raises the exception: ", printable_jinja(given.plain[0].text));
  unknown();
}

JinjaValue JinjaRun::trimmed(const std::string& text) {
  count(16 * text.size());  // each step looks for each kind of space
  return JinjaValue::of(strip_unicode_space(text));
}

JinjaValue JinjaRun::filter(const JinjaValue& value) {
  const std::string called = name();
  const Arguments given = sign("(") ? arguments() : Arguments();
  if (skip_ > 0) return {};
  if (called == "default" && given.plain.size() == 1) {
    return copy(value.kind == JinjaValue::undefined ? given.plain[0] : value);
  }
  if (!given.plain.empty() || !given.named.empty()) unknown();
  count(value.text.size());
  if (called == "trim") return trimmed(written(value));
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
    return copy(called == "first" ? value.items->front() : value.items->back());
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

}  // namespace tapestry::data::detail
