#pragma once
// The values of Jinja, and the interpreter. jinja.cpp has the statements, jinja_expressions.cpp the rest.
#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tapestry/data/tokenizer/internal/jinja_parts.h"

namespace tapestry::data {
struct JinjaContext;
}

namespace tapestry::data::detail {

inline constexpr std::size_t kMaxJinjaText = 1 << 20;  // the bytes of the output, and of each text
inline constexpr std::size_t kMaxJinjaWork = 1 << 26;
inline constexpr int kMaxJinjaSteps = 20'000;
inline constexpr int kMaxJinjaNested = 100;  // lists and dicts in each other

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
  int nested = 0;                      // the lists and dicts from here to the deepest value

  static JinjaValue of(bool value) { return {boolean, value ? 1 : 0, {}, {}, {}}; }
  static JinjaValue of(std::int64_t value) { return {integer, value, {}, {}, {}}; }
  static JinjaValue of(std::string value) { return {string, 0, std::move(value), {}, {}}; }
  static JinjaValue of(JinjaList value) {
    int deepest = 0;
    for (const JinjaValue& item : value) deepest = std::max(deepest, item.nested);
    return {list, 0, {}, std::make_shared<JinjaList>(std::move(value)), {}, deepest + 1};
  }
  static JinjaValue of(JinjaDict value) {
    int deepest = 0;
    for (const auto& [name, member] : value) deepest = std::max(deepest, member.nested);
    return {dict, 0, {}, {}, std::make_shared<JinjaDict>(std::move(value)), deepest + 1};
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

class JinjaRun {
 public:
  JinjaRun(std::vector<JinjaPart> parts, const JinjaContext& context);
  std::string all() {
    run(0, parts_.size());
    return std::move(out_);
  }

 private:
  void run(std::size_t begin, std::size_t end);
  void run_for(std::size_t at);
  void run_set();

  // ---- limits ----
  [[noreturn]] void unknown() const { unknown_jinja(source_); }
  void require(bool ok) const {
    if (!ok) unknown();
  }
  void step() {
    if (++steps_ > kMaxJinjaSteps || out_.size() > kMaxJinjaText) unknown();
  }
  // Counts bytes that are read, copied or compared.
  void count(std::size_t bytes) {
    if (bytes > kMaxJinjaWork - work_) unknown();
    work_ += bytes;
  }
  JinjaValue copy(const JinjaValue& value) {
    count(sizeof value + value.text.size());
    return value;
  }
  JinjaValue bounded(JinjaValue value) const {
    require(value.nested <= kMaxJinjaNested);
    return value;
  }

  // ---- expressions: each function reads from code_ at at_. While skip_ > 0 nothing is computed. ----
  void start(const JinjaPart& part) {
    code_ = part.code, source_ = part.source, at_ = 0;
    count(code_.size());
  }
  void space() {
    while (at_ < code_.size() && is_jinja_space(code_[at_])) ++at_;
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
    while (to < code_.size() && is_jinja_word(code_[to])) ++to;
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
  JinjaValue trimmed(const std::string& text);
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
        unknown();
    }
  }
  const JinjaValue* find(std::string_view name) const {
    for (auto scope = scopes_.rbegin(); scope != scopes_.rend(); ++scope)
      if (const auto found = scope->find(name); found != scope->end()) return &found->second;
    return nullptr;
  }

  std::vector<JinjaPart> parts_;
  std::vector<JinjaDict> scopes_;
  std::string out_;
  std::string_view code_, source_;
  std::size_t at_ = 0, work_ = 0;
  int skip_ = 0, steps_ = 0, depth_ = 0;
};

}  // namespace tapestry::data::detail
