#pragma once
// How often a run saves a checkpoint within an epoch.
#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

namespace apps {

/// An interval in optimizer steps or in minutes.
class CheckpointInterval {
 public:
  /// Parses "none", "200steps" or "10minutes"; "1 step" and "0.5 minutes" are valid too. Returns nothing for
  /// any other text.
  static std::optional<CheckpointInterval> parse(const std::string& text);

  /// True if the interval is in steps and a checkpoint is due after this step. The answer depends only on the
  /// step, so it is the same on all ranks.
  bool due_at(std::int64_t step) const { return steps_ > 0 && step % steps_ == 0; }
  /// True if the interval is in minutes and they have passed since the construction or the last restart().
  bool elapsed() const { return minutes_ > 0 && Clock::now() - start_ >= Minutes(minutes_); }
  /// Call it when a checkpoint was saved.
  void restart() { start_ = Clock::now(); }

 private:
  using Clock = std::chrono::steady_clock;
  using Minutes = std::chrono::duration<double, std::ratio<60>>;
  std::int64_t steps_ = 0;
  double minutes_ = 0;
  Clock::time_point start_ = Clock::now();
};

}  // namespace apps
