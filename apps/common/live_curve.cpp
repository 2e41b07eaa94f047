#include "tapestry/apps/common/live_curve.h"

#include <numeric>

namespace apps {
namespace {

std::int64_t total(const MemoryByKind& m) { return std::accumulate(m.begin(), m.end(), std::int64_t{0}); }

CurvePoint merged(const CurvePoint& a, const CurvePoint& b) {
  const auto mean = [&](double x, double y) {
    return (x * static_cast<double>(a.steps) + y * static_cast<double>(b.steps)) /
           static_cast<double>(a.steps + b.steps);
  };
  return {.step = b.step,
          .steps = a.steps + b.steps,
          .loss = mean(a.loss, b.loss),
          .low = std::fmin(a.low, b.low),
          .high = std::fmax(a.high, b.high),
          .accuracy = mean(a.accuracy, b.accuracy),
          .samples = a.samples + b.samples,
          .seconds = a.seconds + b.seconds,
          .memory = total(a.memory) > total(b.memory) ? a.memory : b.memory};
}

}  // namespace

void LiveCurve::add(const CurvePoint& p) {
  if (!points_.empty() && points_.back().steps < width_) {
    points_.back() = merged(points_.back(), p);
    return;
  }
  if (points_.size() == kMost) {
    for (std::size_t i = 0; i < kMost / 2; ++i) points_[i] = merged(points_[2 * i], points_[2 * i + 1]);
    points_.resize(kMost / 2);
    width_ *= 2;
  }
  points_.push_back(p);
}

}  // namespace apps
