#pragma once
// Quantities that are measured at a few sizes and estimated at all others.
#include <utility>
#include <vector>

namespace tapestry::distributed::planner {

/// A quantity as a function of the number of samples, from measured points. Between two points it is
/// interpolated linearly. Beyond the last point, it continues the line through the last two points if that
/// line rises, otherwise it stays constant. Below the first point, it does the same with the line through the
/// first two points. The result is never negative unless the first point is. A curve with one point is
/// constant. An empty curve is 0.
class Curve {
 public:
  Curve() = default;
  /// Takes (samples, value) pairs. Throws ValueError if two points have the same number of samples or if a
  /// number is not finite.
  explicit Curve(std::vector<std::pair<double, double>> points);
  double at(double samples) const;
  /// The measured points, sorted by samples.
  const std::vector<std::pair<double, double>>& points() const { return points_; }

 private:
  std::vector<std::pair<double, double>> points_;
};

/// The time of one message: latency + bytes * s_per_byte (Hockney, "The communication challenge for MPP:
/// Intel Paragon and Meiko CS-2", 1994).
struct TransferCost {
  double latency_s = 0;
  double s_per_byte = 0;  ///< seconds per byte: the inverse of the bandwidth
  double time(double bytes) const { return latency_s + s_per_byte * bytes; }
  bool is_free() const { return latency_s == 0 && s_per_byte == 0; }
};

/// Fits a TransferCost to (bytes, seconds) points by least squares of the relative errors (fit - t) / t, so
/// that small messages weigh as much as large ones. Both results are at least 0. Throws ValueError if the
/// points have fewer than two different sizes or if a time is not positive.
TransferCost fit_transfer_cost(const std::vector<std::pair<double, double>>& points);

/// The time of a ring all-reduce of `bytes` over n devices: 2 (n - 1) sequential messages of bytes / n each
/// (Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", 2009). It is
/// 0 for one device. `message` is the cost of a single message.
double ring_time(const TransferCost& message, double bytes, int n);
/// The time of an all-gather or a reduce-scatter of `bytes` in total over n devices by a ring: n - 1
/// sequential messages of bytes / n each, half of an all-reduce.
double half_ring_time(const TransferCost& message, double bytes, int n);
/// The inverse of ring_time: the cost of a single message if a ring all-reduce over n devices costs
/// `all_reduce`. Throws ValueError for n < 2.
TransferCost ring_message(const TransferCost& all_reduce, int n);

}  // namespace tapestry::distributed::planner
