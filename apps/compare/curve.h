#pragma once
// Quantities that were measured at a few sizes.
#include <utility>
#include <vector>

namespace apps::compare {

/// What was measured at some numbers of samples. Between two of them it is on the straight line through both,
/// beyond them on the line through the nearest two if that rises, else as at the nearest; not below 0 there.
/// Of one point: that everywhere. Of none: 0.
class Curve {
 public:
  Curve() = default;
  /// (samples, value). Throws ValueError for two points of one size, and for numbers that are not finite.
  explicit Curve(std::vector<std::pair<double, double>> points);
  double at(double samples) const;
  const std::vector<std::pair<double, double>>& points() const { return points_; }

 private:
  std::vector<std::pair<double, double>> points_;  // by size
};

/// What a message costs: a latency, and a time for each byte (Hockney, "The communication challenge for MPP:
/// Intel Paragon and Meiko CS-2", 1994).
struct Line {
  double latency_s = 0;
  double s_per_byte = 0;
  double time(double bytes) const { return latency_s + s_per_byte * bytes; }
};

/// The line with the least sum of squared *relative* errors, (line - t) / t, of points (bytes, seconds):
/// sizes are powers of each other, and small ones count too. Neither of its numbers is negative. Throws
/// ValueError for fewer than two sizes, or times that are not positive.
Line fit_line(const std::vector<std::pair<double, double>>& points);

/// The time of an all-reduce by a ring of n devices: 2 (n - 1) messages of a n-th of the bytes each, one
/// after another (Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms", 2009). One device: none.
double ring_time(const Line& message, double bytes, int n);
/// The other way round: what a message costs where an all-reduce by n >= 2 costs `all_reduce`.
Line ring_message(const Line& all_reduce, int n);

}  // namespace apps::compare
