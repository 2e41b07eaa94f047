#pragma once
// The course of a training run, in a bounded number of points.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "tapestry/apps/common/rank_rows.h"

namespace apps {

/// Some consecutive steps.
struct CurvePoint {
  std::int64_t step = 0;                     ///< the last one
  std::int64_t steps = 1;                    ///< how many
  double loss = NAN, low = NAN, high = NAN;  ///< the mean, and the least and greatest of a step
  double accuracy = NAN;                     ///< the mean
  double samples = 0, seconds = 0;           ///< of all steps
  MemoryByKind memory{};                     ///< when a device held most
};

/// When there would be too many points, each two become one. So the points of a long run stand for equally
/// many steps.
class LiveCurve {
 public:
  static constexpr std::size_t kMost = 512;
  void add(const CurvePoint& p);
  /// The last point may stand for fewer steps than the others.
  const std::vector<CurvePoint>& points() const { return points_; }

 private:
  std::vector<CurvePoint> points_;
  std::int64_t width_ = 1;  // the steps of a point
};

}  // namespace apps
