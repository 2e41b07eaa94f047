#pragma once
// One live line on a terminal; plain lines, now and then, elsewhere.
#include <chrono>
#include <cstdint>
#include <string>

namespace apps {

/// Shows epoch, step, loss, accuracy, samples/s and time left.
class Progress {
 public:
  /// `enabled` false prints nothing. `interval_s`: seconds between plain lines when stdout is no terminal.
  Progress(std::int64_t total_steps, std::int64_t steps_per_epoch, int epochs, bool enabled = true,
           double interval_s = 10);
  /// Leaves the live line to be read.
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;
  /// Where a resumed run starts, so that speed and time left count what this run did.
  void start_at(std::int64_t step) { first_step_ = step_ = step; }
  /// After each step. At most ten redraws a second.
  void step(int epoch, std::int64_t step_in_epoch, std::int64_t samples, double loss, double accuracy);
  /// Prints a whole line that stays, in place of the live one.
  void line(const std::string& text);

 private:
  using Clock = std::chrono::steady_clock;
  const std::int64_t total_steps_, steps_per_epoch_;
  const int epochs_;
  const bool enabled_, terminal_;
  const double interval_s_;
  bool live_ = false;  // the cursor is on the live line
  std::int64_t step_ = 0, first_step_ = 0, samples_ = 0;
  Clock::time_point start_ = Clock::now(), shown_{};
};

/// "1:05" or "2:03:04"
std::string duration(double seconds);

}  // namespace apps
