#include "tapestry/distributed/planner/curve.h"

#include <algorithm>
#include <cmath>

#include "tapestry/core/error.h"

namespace tapestry::distributed::planner {

Curve::Curve(std::vector<std::pair<double, double>> points) : points_(std::move(points)) {
  std::sort(points_.begin(), points_.end());
  for (std::size_t i = 0; i < points_.size(); ++i) {
    const auto [size, value] = points_[i];
    check(std::isfinite(size) && std::isfinite(value), "[Curve] a point is (", size, ", ", value,
          "); pass finite numbers");
    check(i == 0 || size > points_[i - 1].first, "[Curve] two points have the size ", size,
          "; pass one point per size");
  }
}

double Curve::at(double samples) const {
  if (points_.empty()) return 0;
  if (points_.size() == 1) return points_[0].second;
  // points_[i - 1] and points_[i] define the line that is used for `samples`.
  std::size_t i = 1;
  while (i + 1 < points_.size() && points_[i].first < samples) ++i;
  const auto [x0, y0] = points_[i - 1];
  const auto [x1, y1] = points_[i];
  const double slope = (y1 - y0) / (x1 - x0);
  if (samples > x1) return y1 + std::max(slope, 0.0) * (samples - x1);
  if (samples >= x0) return y0 + slope * (samples - x0);
  return std::max(std::min(y0, 0.0), y0 + std::max(slope, 0.0) * (samples - x0));
}

TransferCost fit_transfer_cost(const std::vector<std::pair<double, double>>& points) {
  // Minimises sum w (a + b x - t)^2 with w = 1 / t^2.
  double w = 0, x = 0, t = 0, xx = 0, xt = 0;
  bool differ = false;
  for (const auto& [bytes, seconds] : points) {
    check(std::isfinite(bytes) && std::isfinite(seconds) && bytes >= 0 && seconds > 0, "[fit_transfer_cost] ",
          bytes, " bytes took ", seconds, " s; pass times above 0");
    differ = differ || bytes != points[0].first;
    const double weight = 1 / (seconds * seconds);
    w += weight;
    x += weight * bytes;
    t += weight * seconds;
    xx += weight * bytes * bytes;
    xt += weight * bytes * seconds;
  }
  check(differ, "[fit_transfer_cost] ", points.size(), " points of one size; measure two sizes or more");
  const double slope = (w * xt - x * t) / (w * xx - x * x), latency = (t - slope * x) / w;
  if (latency < 0) return {0, xt / xx};
  if (slope < 0) return {t / w, 0};
  return {latency, slope};
}

double ring_time(const TransferCost& message, double bytes, int n) {
  check(n >= 1, "[ring_time] ", n, " devices; pass one or more");
  return 2 * (n - 1) * message.time(bytes / n);
}

double half_ring_time(const TransferCost& message, double bytes, int n) {
  check(n >= 1, "[half_ring_time] ", n, " devices; pass one or more");
  return (n - 1) * message.time(bytes / n);
}

TransferCost ring_message(const TransferCost& all_reduce, int n) {
  check(n >= 2, "[ring_message] ", n, " devices send nothing; pass two or more");
  const double messages = 2.0 * (n - 1);
  return {all_reduce.latency_s / messages, all_reduce.s_per_byte * n / messages};
}

}  // namespace tapestry::distributed::planner
