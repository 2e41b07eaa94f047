#pragma once
// Loss and accuracy over an epoch.
#include <cstdint>
#include <string>

namespace apps {

/// Sums over examples, so that batches of different sizes are weighted correctly.
struct Tally {
  double loss = 0;
  std::int64_t right = 0, count = 0;

  void add(double batch_loss, std::int64_t batch_right, std::int64_t n) {
    loss += batch_loss * static_cast<double>(n);
    right += batch_right;
    count += n;
  }
  double mean_loss() const { return loss / static_cast<double>(count); }
  double accuracy() const { return static_cast<double>(right) / static_cast<double>(count); }

  /// An exact text representation, for checkpoints.
  std::string str() const;
  /// The inverse of str(). Throws IoError for any other text.
  static Tally parse(const std::string& text);
};

}  // namespace apps
