#include "tapestry/apps/compare/holdings.h"

#include <algorithm>
#include <numeric>

namespace apps::compare {
namespace {

using tapestry::MemoryKind;
using tapestry::MemorySample;

constexpr double kWhole = 0.97;  // buffers and biases make replicas unequal by less than this

std::int64_t bytes_of(const MemorySample& s, MemoryKind kind) {
  return s.bytes[static_cast<std::size_t>(kind)];
}

std::int64_t most(const MemoryHistory& h, MemoryKind kind) {
  std::int64_t bytes = 0;
  for (const MemorySample& s : h.samples) bytes = std::max(bytes, bytes_of(s, kind));
  return bytes;
}

std::int64_t resident(const MemoryHistory& h, MemoryKind kind) {
  std::int64_t bytes = most(h, kind);
  if (kind == MemoryKind::parameters || kind == MemoryKind::optimizer)
    for (const MemorySample& s : h.samples) bytes = std::min(bytes, bytes_of(s, kind));
  if (kind == MemoryKind::gradients) bytes = bytes_of(h.samples.back(), kind);
  return bytes;
}

// The share of `whole` that each device keeps, one after another from the top; all of it for replicas.
std::vector<std::pair<double, double>> parts_of(const std::vector<std::int64_t>& bytes, std::int64_t whole) {
  std::vector<std::pair<double, double>> parts;
  double begin = 0;
  for (const std::int64_t own : bytes) {
    const double part = whole > 0 ? std::min(1.0, static_cast<double>(own) / static_cast<double>(whole)) : 0;
    if (part > kWhole) parts.emplace_back(0, 1);
    else {
      if (begin + part > 2 - kWhole) begin = 0;
      parts.emplace_back(begin, std::min(1.0, begin + part));
      begin += part;
    }
  }
  return parts;
}

}  // namespace

std::vector<Holding> holdings_of(const Report& report, const Result& r) {
  const Workload& w = report.workload;
  const bool splits = r.family == "stages" && w.split.size() == r.memory.size();
  const int split = std::accumulate(w.split.begin(), w.split.end(), 0);
  const int blocks = report.profile ? static_cast<int>(report.profile->blocks.size()) : split;
  const MemoryHistory* const single = !report.results.empty() && !report.results[0].memory.empty()
                                          ? report.results[0].memory.data()
                                          : nullptr;
  std::vector<Holding> all;
  for (const MemoryKind kind :
       {MemoryKind::activations, MemoryKind::parameters, MemoryKind::gradients, MemoryKind::optimizer}) {
    std::vector<std::int64_t> bytes;
    for (const MemoryHistory& h : r.memory) bytes.push_back(resident(h, kind));
    std::int64_t whole = single ? resident(*single, kind) : 0;
    for (const std::int64_t own : bytes) whole = single ? whole : std::max(whole, own);
    const auto parts = parts_of(bytes, whole);
    int block = 0;
    for (std::size_t d = 0; d < bytes.size(); ++d) {
      Holding h{static_cast<int>(d), kind, 0, blocks};
      h.resident_bytes = bytes[d];
      h.borrowed_bytes = most(r.memory[d], kind) - bytes[d];
      if (splits) h.first_block = block, h.last_block = block += w.split[d];
      else h.first = parts[d].first, h.last = parts[d].second;
      all.push_back(h);
    }
  }
  return all;
}

}  // namespace apps::compare
