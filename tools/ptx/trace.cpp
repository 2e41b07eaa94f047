// What one thread executes: a line per instruction, with its operands after it has run.
#include <charconv>
#include <cstdio>
#include <string_view>

#include "tapestry/tools/ptx/warp.h"

namespace tapestry::ptx {
namespace {

// "7", or "(1,0,2)" in a grid or block of these sizes.
bool parse_index(std::string_view text, const Dim& size, u64& index) {
  u64 parts[3] = {};
  std::size_t count = 1;
  const bool triple = text.size() > 2 && text.front() == '(' && text.back() == ')';
  if (triple) text = text.substr(1, text.size() - 2), count = 3;
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t comma = i + 1 < count ? text.find(',') : text.size();
    if (comma == text.npos) return false;
    const auto [end, error] = std::from_chars(text.data(), text.data() + comma, parts[i]);
    if (error != std::errc() || end != text.data() + comma) return false;
    text.remove_prefix(std::min(comma + 1, text.size()));
  }
  index = triple ? parts[0] + size.x * (parts[1] + size.y * parts[2]) : parts[0];
  return true;
}

std::string line_of_text(const std::string& text, int number) {
  std::size_t at = 0;
  for (int line = 1; line < number && at != text.npos; ++line) {
    at = text.find('\n', at);
    if (at != text.npos) ++at;
  }
  if (at == text.npos) return "";
  std::string line = text.substr(at, text.find('\n', at) - at);
  for (char& c : line)
    if (c == '\t') c = ' ';
  return line.substr(std::min(line.find_first_not_of(' '), line.size()));
}

}  // namespace

void choose_traced(Launch& launch) {
  const std::string_view trace = launch.options->trace;
  if (trace.empty()) return;
  const std::size_t second = trace.rfind(':'),
                    first = second == 0 || second == trace.npos ? second : trace.rfind(':', second - 1);
  u64 block = 0, thread = 0;
  if (first == trace.npos || second == trace.npos || first == second ||
      !parse_index(trace.substr(first + 1, second - first - 1), launch.grid, block) ||
      !parse_index(trace.substr(second + 1), launch.block, thread))
    throw UsageError("[ptx] '" + std::string(trace) +
                     "' names no thread; write KERNEL:BLOCK:THREAD, such as saxpy:0:5");
  if (launch.program->entry->name.find(trace.substr(0, first)) == std::string::npos) return;
  launch.traced_block = block;
  launch.traced_thread = static_cast<u32>(thread);
}

void print_traced(Warp& w, const Code& c, int lane, bool executed) {
  const Program& p = w.program();
  const std::string text = line_of_text(*p.module->text, c.source->line);
  std::string line = p.line_of(*c.source);
  line = line.substr(line.find_last_of('/') + 1) + "  " + text;
  if (!executed) line += "   (its predicate is false)";
  const Ref* const o = w.operands(c);
  for (u32 i = 0; executed && i < c.count; ++i) {
    u64 value = 0;
    if (o[i].width == 0) value = w.predicate(o[i]) >> lane & 1;
    else std::memcpy(&value, w.row<const std::byte>(o[i]) + lane * o[i].width, o[i].width);
    line +=
        (i == 0 ? "   = " : ", ") + (o[i].width == 0 ? std::string(value ? "true" : "false") : hex(value));
  }
  std::fprintf(stderr, "[trace] %s\n", line.c_str());
}

}  // namespace tapestry::ptx
