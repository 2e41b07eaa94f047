#include "tapestry/core/profiler.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>
#include <tuple>

#include "tapestry/core/trace.h"

namespace tapestry::profiler {
namespace {

// 1536 -> "1.5 KiB"
std::string bytes_text(std::int64_t bytes) {
  static constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  double value = static_cast<double>(bytes);
  int unit = 0;
  for (; std::abs(value) >= 1024 && unit < 4; ++unit) value /= 1024;
  char text[32];
  std::snprintf(text, sizeof text, unit == 0 ? "%.0f %s" : "%.1f %s", value, kUnits[unit]);
  return text;
}

// The time of each span without the spans inside of it. A thread works on a row with one span at a time, so
// spans of one thread and row are nested or apart.
std::vector<double> self_times(const std::vector<Span>& spans) {
  std::vector<std::size_t> order(spans.size());
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
  const auto key = [&](std::size_t i) {
    const Span& s = spans[i];
    return std::tuple<const std::string&, int, double, double>(s.row, s.thread, s.begin, -s.end);
  };
  std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return key(a) < key(b); });
  std::vector<double> self(spans.size());
  std::vector<std::size_t> open;
  for (const std::size_t i : order) {
    const Span& s = spans[i];
    const auto encloses = [&](std::size_t other) {
      const Span& o = spans[other];
      return o.row == s.row && o.thread == s.thread && o.end >= s.end;
    };
    while (!open.empty() && !encloses(open.back())) open.pop_back();
    self[i] = s.end - s.begin;
    if (!open.empty()) self[open.back()] -= self[i];
    open.push_back(i);
  }
  return self;
}

}  // namespace

std::vector<Operation> Profile::operations(SortBy order) const {
  const std::vector<Span> spans = timeline_.spans();
  const std::vector<double> self = self_times(spans);
  std::map<std::tuple<std::string, Activity, std::string>, Operation> found;
  for (std::size_t i = 0; i < spans.size(); ++i) {
    const Span& s = spans[i];
    Operation& o = found[{s.name, s.activity, s.row}];
    o.name = s.name, o.activity = s.activity, o.row = s.row;
    ++o.calls;
    o.self_time += self[i];
    o.total_time += s.end - s.begin;
    o.memory += s.allocated;
  }
  std::vector<Operation> all;
  for (auto& [name, operation] : found) all.push_back(std::move(operation));
  const auto value = [&](const Operation& o) -> double {
    switch (order) {
      case SortBy::self_time:
        return o.self_time;
      case SortBy::total_time:
        return o.total_time;
      case SortBy::calls:
        return static_cast<double>(o.calls);
      case SortBy::memory:
        return static_cast<double>(o.memory);
      case SortBy::name:
        break;
    }
    return 0;  // `found` is sorted by name
  };
  std::stable_sort(all.begin(), all.end(),
                   [&](const Operation& a, const Operation& b) { return value(a) > value(b); });
  return all;
}

std::string Profile::table(SortBy order, int rows) const {
  const std::vector<Operation> all = operations(order);
  Operation sum;
  std::size_t width = 9;
  for (const Operation& o : all) {
    sum.calls += o.calls;
    sum.self_time += o.self_time;
    width = std::max(width, o.name.size());
  }
  width = std::min<std::size_t>(width, 48);
  char line[256];
  const int w = static_cast<int>(width);
  std::snprintf(line, sizeof line, "%-*s  %-13s  %-8s %8s %12s %7s %12s %12s %12s\n", w, "operation", "kind",
                "device", "calls", "self ms", "self %", "total ms", "mean us", "memory");
  std::string out = line;
  int shown = 0;
  for (const Operation& o : all) {
    if (shown++ == rows) break;
    std::snprintf(line, sizeof line, "%-*.*s  %-13s  %-8.20s %8lld %12.3f %7.2f %12.3f %12.2f %12s\n", w, w,
                  o.name.c_str(), activity_name(o.activity), o.row.c_str(), static_cast<long long>(o.calls),
                  o.self_time * 1e3, sum.self_time > 0 ? 100 * o.self_time / sum.self_time : 0,
                  o.total_time * 1e3, o.total_time / static_cast<double>(o.calls) * 1e6,
                  bytes_text(o.memory).c_str());
    out += line;
  }
  std::snprintf(line, sizeof line, "%-*s  %-13s  %-8s %8lld %12.3f %7.2f   (%zu operations, %zu not shown)\n",
                w, "all", "", "", static_cast<long long>(sum.calls), sum.self_time * 1e3,
                all.empty() ? 0.0 : 100.0, all.size(),
                all.size() - std::min(all.size(), static_cast<std::size_t>(std::max(rows, 0))));
  return out + line;
}

void Profile::write_trace(const std::string& path) const { tapestry::write_trace(timeline_, path); }

}  // namespace tapestry::profiler
