#pragma once
// Progress of a training run: one line that is redrawn on a terminal, or a plain line every few seconds
// elsewhere.
#include <chrono>
#include <cstdint>
#include <string>

namespace apps {

/// Shows epoch, step, loss, accuracy, samples/s and the remaining time.
class Progress {
 public:
  /// Prints nothing if `enabled` is false. `interval_s` is the time between plain lines if stdout is not a
  /// terminal.
  Progress(std::int64_t total_steps, std::int64_t steps_per_epoch, int epochs, bool enabled = true,
           double interval_s = 10);
  /// Ends the line that is being redrawn, so that later output does not overwrite it.
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;
  /// Sets the first step of a resumed run, so that speed and remaining time count only steps of this run.
  void start_at(std::int64_t step) { first_step_ = step_ = step; }
  /// Call after each step. Redraws at most ten times per second.
  void step(int epoch, std::int64_t step_in_epoch, std::int64_t samples, double loss, double accuracy);
  /// The same for a run without epochs: the line shows `text`, and the speed in `unit`s, of which this step
  /// had `count`.
  void step(std::int64_t count, const char* unit, const std::string& text);
  /// Shows what the program does between two steps, as often as step() would.
  void note(const std::string& text);
  /// Prints a line that stays. It replaces the line that is being redrawn.
  void line(const std::string& text);

 private:
  using Clock = std::chrono::steady_clock;
  bool due();
  void show(const std::string& text);

  const std::int64_t total_steps_, steps_per_epoch_;
  const int epochs_;
  const bool enabled_, terminal_;
  const double interval_s_;
  bool live_ = false;  // the cursor is on a line that will be redrawn
  std::int64_t step_ = 0, first_step_ = 0, samples_ = 0;
  Clock::time_point start_ = Clock::now(), shown_{};
};

/// Returns a duration as text, such as "1:05" or "2:03:04".
std::string duration(double seconds);

}  // namespace apps
