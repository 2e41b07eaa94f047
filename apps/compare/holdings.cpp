#include "tapestry/apps/compare/holdings.h"

#include <algorithm>
#include <cmath>
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

// The part of the parameters that a stage has; 1 if the blocks' sizes are not known.
double share_of_stage(const Report& report, const std::vector<int>& split, std::size_t stage) {
  if (!report.profile) return 1;
  double own = 0, all = 0;
  std::size_t s = 0;
  int left = split[0];
  for (const planner::BlockProfile& block : report.profile->blocks) {
    while (left == 0 && s + 1 < split.size()) left = split[++s];
    const auto bytes = static_cast<double>(block.all_parameter_bytes());
    if (s == stage) own += bytes;
    all += bytes;
    --left;
  }
  return all > 0 ? own / all : 1;
}

}  // namespace

std::vector<Holding> holdings_of(const Report& report, const Result& r) {
  const Workload& w = report.workload;
  const std::vector<int>& split = r.split.empty() ? w.split : r.split;
  // The stages come one after another, each with its replicas or shards.
  const std::size_t stages = r.family == "stages" && !split.empty() ? split.size() : 1;
  const bool splits = r.family == "stages" && r.memory.size() % stages == 0;
  const std::size_t per_stage = splits ? r.memory.size() / stages : r.memory.size();
  const int all_blocks = std::accumulate(split.begin(), split.end(), 0);
  const int blocks = report.profile ? static_cast<int>(report.profile->blocks.size()) : all_blocks;
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
    std::vector<std::pair<double, double>> of_stage;  // of each device, among those of its stage
    for (std::size_t s = 0; s < stages && splits && per_stage > 1; ++s) {
      const auto begin = bytes.begin() + static_cast<std::ptrdiff_t>(s * per_stage),
                 end = begin + static_cast<std::ptrdiff_t>(per_stage);
      // The replicas of a stage have different samples. What they have of the model is a part of the stage's.
      const double all_of_stage = kind == MemoryKind::activations
                                      ? static_cast<double>(std::accumulate(begin, end, std::int64_t{0}))
                                      : static_cast<double>(whole) * share_of_stage(report, split, s);
      for (const auto& part : parts_of({begin, end}, std::llround(all_of_stage))) of_stage.push_back(part);
    }
    int block = 0;
    for (std::size_t d = 0; d < bytes.size(); ++d) {
      const std::size_t stage = d / per_stage;
      Holding h{static_cast<int>(d), kind, 0, blocks};
      h.resident_bytes = bytes[d];
      h.borrowed_bytes = most(r.memory[d], kind) - bytes[d];
      if (splits) {
        h.first_block = block, h.last_block = block + split[stage];
        if ((d + 1) % per_stage == 0) block += split[stage];
        if (per_stage > 1) h.first = of_stage[d].first, h.last = of_stage[d].second;
      } else {
        h.first = parts[d].first, h.last = parts[d].second;
      }
      all.push_back(h);
    }
  }
  return all;
}

}  // namespace apps::compare
