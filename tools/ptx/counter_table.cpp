#include "tapestry/tools/ptx/counter_table.h"

#include <cxxabi.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <sstream>
#include <type_traits>

#include "tapestry/tools/ptx/gpu.h"

namespace tapestry::ptx {
namespace {

using u64 = std::uint64_t;

/// Calls f with the name and a reference of each number of a row.
template <class Row, class F>
void each_number(Row& row, F f) {
  auto& c = row.counters;
  f("block", row.block), f("shared", row.shared);
  f("launches", c.launches), f("blocks", c.blocks), f("threads", c.threads);
  f("warp_instructions", c.warp_instructions), f("active_lanes", c.active_lanes);
  f("thread_instructions", c.thread_instructions), f("branches", c.branches), f("diverged", c.diverged);
  f("barriers", c.barriers), f("atomics", c.atomics), f("tensor_products", c.tensor_products),
      f("flops", c.flops);
  f("unique_read", c.unique_read), f("unique_written", c.unique_written),
      f("unique_sectors", c.unique_sectors);
  for (std::size_t i = 0; i < kPipes; ++i) {
    const std::string name = name_of(static_cast<Pipe>(i));
    f("pipe_" + name, c.warps_by_pipe[i]);
    f("lanes_" + name, c.threads_by_pipe[i]);
  }
  const auto traffic = [&](const std::string& name, auto& t) {
    f(name + "_requests", t.requests), f(name + "_sectors", t.sectors), f(name + "_bytes", t.bytes);
  };
  traffic("load", c.loads), traffic("store", c.stores), traffic("atomic", c.global_atomics),
      traffic("local", c.local);
  const auto shared = [&](const std::string& name, auto& t) {
    f(name + "_requests", t.requests), f(name + "_passes", t.passes), f(name + "_conflicts", t.conflicts);
    f(name + "_bytes", t.bytes), f(name + "_worst", t.worst);
  };
  shared("shared_load", c.shared_loads), shared("shared_store", c.shared_stores);
  shared("shared_atomic", c.shared_atomics);
}

std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> parts;
  std::istringstream stream(text);
  for (std::string part; std::getline(stream, part, separator);) parts.push_back(part);
  return parts;
}
u64 number(const std::string& text) { return std::strtoull(text.c_str(), nullptr, 10); }
double ratio(double a, double b) { return b == 0 ? 0 : a / b; }
double as_double(u64 n) { return static_cast<double>(n); }
std::string fixed(double value, int digits) {
  char text[64];
  std::snprintf(text, sizeof text, "%.*f", digits, value);
  return text;
}
std::string or_dash(u64 requests, double value) { return requests == 0 ? "-" : fixed(value, 1); }

SharedTraffic all_shared(const Counters& c) {
  SharedTraffic sum;
  for (const SharedTraffic* t : {&c.shared_loads, &c.shared_stores, &c.shared_atomics}) {
    sum.requests += t->requests;
    sum.passes += t->passes;
    sum.conflicts += t->conflicts;
    sum.worst = std::max(sum.worst, t->worst);
  }
  return sum;
}

}  // namespace

std::string to_text(const std::vector<KernelRow>& rows) {
  std::ostringstream out;
  for (const KernelRow& row : rows) {
    out << "kernel\t" << row.kernel;
    each_number(row,
                [&](const std::string& name, const auto& value) { out << '\t' << name << '=' << value; });
    out << '\n';
    for (const PlaceCounters& p : row.counters.places)
      out << "place\t" << p.place << '\t' << p.memory.requests << '\t' << p.memory.sectors << '\t'
          << p.memory.bytes << '\t' << p.shared.requests << '\t' << p.shared.passes << '\t'
          << p.shared.conflicts << '\t' << p.shared.worst << '\n';
  }
  return out.str();
}

std::vector<KernelRow> rows_from_text(const std::string& text) {
  std::vector<KernelRow> rows;
  for (const std::string& line : split(text, '\n')) {
    const std::vector<std::string> fields = split(line, '\t');
    if (fields.size() > 1 && fields[0] == "kernel") {
      KernelRow& row = rows.emplace_back();
      row.kernel = fields[1];
      std::map<std::string, u64> values;
      for (std::size_t i = 2; i < fields.size(); ++i) {
        const std::size_t equals = fields[i].find('=');
        if (equals != std::string::npos)
          values[fields[i].substr(0, equals)] = number(fields[i].substr(equals + 1));
      }
      each_number(row, [&](const std::string& name, auto& value) {
        value = static_cast<std::remove_reference_t<decltype(value)>>(values[name]);
      });
    } else if (fields.size() > 8 && fields[0] == "place" && !rows.empty()) {
      PlaceCounters& p = rows.back().counters.places.emplace_back();
      p.place = fields[1];
      p.memory = {number(fields[2]), number(fields[3]), number(fields[4])};
      p.shared.requests = number(fields[5]);
      p.shared.passes = number(fields[6]);
      p.shared.conflicts = number(fields[7]);
      p.shared.worst = static_cast<std::uint32_t>(number(fields[8]));
    }
  }
  return rows;
}

double occupancy(const KernelRow& row) {
  return residency(gpu_of(90), row.registers, row.shared, static_cast<std::uint32_t>(row.block)).fraction;
}
std::string verdict(const KernelRow& row) {
  const Gpu& gpu = gpu_of(90);
  const Verdict v = tapestry::ptx::verdict(
      gpu, row.counters, residency(gpu, row.registers, row.shared, static_cast<std::uint32_t>(row.block)));
  const auto largest = static_cast<Bound>(std::max_element(v.clocks, v.clocks + 5) - v.clocks);
  return v.bound == Bound::kLatency ? "latency, then " + std::string(name_of(largest)) : name_of(v.bound);
}

std::string short_name(const std::string& symbol) {
  int status = 0;
  char* const demangled = abi::__cxa_demangle(symbol.c_str(), nullptr, nullptr, &status);
  std::string name = status == 0 && demangled ? demangled : symbol;
  std::free(demangled);
  // Without arguments of templates and functions, which may contain spaces and colons.
  std::string plain;
  int depth = 0;
  for (std::size_t i = 0; i < name.size(); ++i) {
    if (name.compare(i, 21, "(anonymous namespace)") == 0) {
      i += 20;
      continue;
    }
    if (name[i] == '<') ++depth;
    else if (name[i] == '>') --depth;
    else if (depth == 0 && name[i] == '(') break;
    else if (depth == 0) plain += name[i];
  }
  plain.erase(0, plain.find_last_of(": ") + 1);
  return plain.empty() ? symbol : plain;
}

std::string table(const std::vector<KernelRow>& rows) {
  const std::vector<std::string> head = {"kernel",       "launches",      "warp instr.", "lanes",
                                         "sectors/load", "sectors/store", "passes",      "moved/needed",
                                         "registers",    "occupancy",     "verdict"};
  std::vector<std::vector<std::string>> lines = {head};
  for (const KernelRow& row : rows) {
    const Counters& c = row.counters;
    const SharedTraffic shared = all_shared(c);
    lines.push_back({short_name(row.kernel), std::to_string(c.launches), std::to_string(c.warp_instructions),
                     fixed(c.average_active_lanes(), 1),
                     or_dash(c.loads.requests, c.loads.sectors_per_request()),
                     or_dash(c.stores.requests, c.stores.sectors_per_request()),
                     or_dash(shared.requests, shared.passes_per_request()),
                     or_dash(c.unique_read + c.unique_written, c.moved_over_needed()),
                     row.registers == 0 ? "-" : std::to_string(row.registers),
                     fixed(100 * occupancy(row), 0) + "%", verdict(row)});
  }
  std::vector<std::size_t> widths(head.size());
  for (const auto& line : lines)
    for (std::size_t i = 0; i < line.size(); ++i) widths[i] = std::max(widths[i], line[i].size());
  std::string text;
  for (const auto& line : lines) {
    for (std::size_t i = 0; i < line.size(); ++i) {
      const std::string gap(widths[i] - line[i].size(), ' ');
      const bool left = i == 0 || i + 1 == line.size();
      text += (i == 0 ? "" : "  ") + (left ? line[i] + (i == 0 ? gap : "") : gap + line[i]);
    }
    text += "\n";
  }
  for (const KernelRow& row : rows) {
    for (const PlaceCounters& p : row.counters.places) {
      // A request needs as many sectors as its bytes fill.
      const double mean = ratio(as_double(p.memory.bytes), as_double(p.memory.requests));
      const double ideal = std::max(1.0, mean / 32);
      if (p.memory.requests > 0 && p.memory.sectors_per_request() > 1.5 * ideal)
        text += "  " + short_name(row.kernel) + ", " + p.place + ": " +
                fixed(p.memory.sectors_per_request(), 1) + " sectors a request, and " + fixed(ideal, 1) +
                " would hold its " + fixed(mean, 0) + " bytes\n";
      if (p.shared.conflicts > 0)
        text += "  " + short_name(row.kernel) + ", " + p.place + ": " +
                fixed(ratio(as_double(p.shared.passes), as_double(p.shared.requests)), 1) +
                " passes a request; one bank serves up to " + std::to_string(p.shared.worst) + " words\n";
    }
  }
  return text;
}

}  // namespace tapestry::ptx
