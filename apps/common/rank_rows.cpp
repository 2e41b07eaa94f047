#include "tapestry/apps/common/rank_rows.h"

namespace apps {

using namespace tapestry;

namespace {

// Often enough for a reader, and seldom enough to cost nothing beside short steps.
constexpr std::chrono::milliseconds kMeasureInterval{250};

MemoryByKind fullest(const std::vector<MemorySample>& samples) {
  const MemorySample* most = &samples.front();
  for (const MemorySample& s : samples)
    if (s.total() > most->total()) most = &s;
  return most->bytes;
}

}  // namespace

bool RankRows::due() const { return std::chrono::steady_clock::now() - record_.began() >= kMeasureInterval; }

void RankRows::complete(RankRow& row, const distributed::Strategy& strategy) {
  if (memory_.empty() || due()) {
    memory_.clear();
    for (const Device d : strategy.devices()) memory_.push_back(fullest(record_.samples(d)));
  }
  row.memory = memory_.front();
  row.waiting_s = 0;
  for (const distributed::AxisReport& axis : strategy.report()) row.waiting_s += axis.exposed_s;
}

void RankRows::forget() {
  if (due()) record_.restart();
}

}  // namespace apps
