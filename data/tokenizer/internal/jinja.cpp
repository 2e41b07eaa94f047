#include "tapestry/data/tokenizer/internal/jinja.h"

#include "tapestry/data/tokenizer/chat.h"
#include "tapestry/data/tokenizer/internal/jinja_run.h"
#include "tapestry/data/tokenizer/internal/utf8.h"

namespace tapestry::data {
namespace detail {

JinjaRun::JinjaRun(std::vector<JinjaPart> parts, const JinjaContext& context) : parts_(std::move(parts)) {
  JinjaList messages;
  for (const ChatMessage& m : context.messages)
    messages.push_back(
        JinjaValue::of(JinjaDict{{"role", JinjaValue::of(m.role)}, {"content", JinjaValue::of(m.content)}}));
  scopes_.push_back({{"messages", JinjaValue::of(std::move(messages))},
                     {"add_generation_prompt", JinjaValue::of(context.add_generation_prompt)},
                     {"bos_token", JinjaValue::of(context.bos_token)},
                     {"eos_token", JinjaValue::of(context.eos_token)},
                     {"tools", {JinjaValue::none, 0, {}, {}, {}}},
                     {"documents", {JinjaValue::none, 0, {}, {}, {}}}});
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
  // A list or dict could hold the namespace itself.
  require(value.kind != JinjaValue::list && value.kind != JinjaValue::dict);
  (*target->members)[member] = std::move(value);
}

void JinjaRun::run_for(std::size_t at) {
  std::vector<std::string> names{name()};
  while (sign(",")) names.push_back(name());
  if (!word("in") || names.size() > 1) unknown();
  const JinjaValue all = disjunction();
  finish();
  require(all.kind == JinjaValue::list);
  const JinjaList& items = *all.items;  // which nothing changes
  const std::size_t body = parts_[at].next;
  for (std::size_t i = 0; i < items.size(); ++i) {
    step();
    JinjaDict loop{{"index0", JinjaValue::of(static_cast<std::int64_t>(i))},
                   {"index", JinjaValue::of(static_cast<std::int64_t>(i) + 1)},
                   {"length", JinjaValue::of(static_cast<std::int64_t>(items.size()))},
                   {"first", JinjaValue::of(i == 0)},
                   {"last", JinjaValue::of(i + 1 == items.size())}};
    if (i > 0) loop["previtem"] = copy(items[i - 1]);
    if (i + 1 < items.size()) loop["nextitem"] = copy(items[i + 1]);
    scopes_.push_back({{names[0], copy(items[i])}, {"loop", JinjaValue::of(std::move(loop))}});
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

}  // namespace detail

std::string render_jinja(std::string_view jinja, const JinjaContext& context) {
  std::vector<detail::JinjaPart> parts = detail::split_jinja(jinja);
  detail::link_branches(parts);
  return detail::JinjaRun(std::move(parts), context).all();
}

std::string printable_jinja(std::string_view text, std::size_t most) {
  std::string shown;
  while (!text.empty()) {
    const Utf8Unit unit = read_utf8(text);
    if (shown.size() + unit.bytes > most) return shown + "...";
    const bool control = unit.code < 0x20 || (unit.code >= 0x7f && unit.code < 0xa0);
    if (unit.valid && unit.code == '\n') shown += "\\n";
    else if (unit.valid && !control) shown += text.substr(0, unit.bytes);
    else shown += '?';
    text.remove_prefix(unit.bytes);
  }
  return shown;
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
