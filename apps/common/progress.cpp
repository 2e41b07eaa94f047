#include "tapestry/apps/common/progress.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <cmath>
#include <cstdio>

namespace apps {

std::string duration(double seconds) {
  const auto total =
      static_cast<long long>(std::llround(seconds < 0 || !std::isfinite(seconds) ? 0 : seconds));
  char text[32];
  if (total >= 3600)
    std::snprintf(text, sizeof text, "%lld:%02lld:%02lld", total / 3600, total / 60 % 60, total % 60);
  else std::snprintf(text, sizeof text, "%lld:%02lld", total / 60, total % 60);
  return text;
}

Progress::Progress(std::int64_t total_steps, std::int64_t steps_per_epoch, int epochs, bool enabled,
                   double interval_s)
    : total_steps_(total_steps),
      steps_per_epoch_(steps_per_epoch),
      epochs_(epochs),
      enabled_(enabled),
      terminal_(isatty(STDOUT_FILENO) != 0),
      interval_s_(interval_s) {}

Progress::~Progress() {
  if (!live_) return;
  std::printf("\n");
  std::fflush(stdout);
}

// True if the line must be drawn now.
bool Progress::due() {
  if (!enabled_) return false;
  const Clock::time_point now = Clock::now();
  if (std::chrono::duration<double>(now - shown_).count() < (terminal_ ? 0.1 : interval_s_)) return false;
  shown_ = now;
  return true;
}

void Progress::show(const std::string& text) {
  if (terminal_) {
    winsize size{};
    const bool known = ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
    std::printf("\r\033[K%.*s", known ? size.ws_col - 1 : 79,
                text.c_str());  // cut off, because a wrapped line cannot be redrawn
    live_ = true;
  } else {
    std::printf("%s\n", text.c_str());
  }
  std::fflush(stdout);
}

void Progress::step(int epoch, std::int64_t step_in_epoch, std::int64_t samples, double loss,
                    double accuracy) {
  ++step_;
  samples_ += samples;
  if (!due()) return;
  const double elapsed = std::chrono::duration<double>(shown_ - start_).count();
  const double left =
      elapsed / static_cast<double>(step_ - first_step_) * static_cast<double>(total_steps_ - step_);
  char text[160];
  std::snprintf(text, sizeof text,
                "epoch %d/%d  step %lld/%lld  loss %.4f  accuracy %.3f  %.0f samples/s  %s left", epoch,
                epochs_, static_cast<long long>(step_in_epoch), static_cast<long long>(steps_per_epoch_),
                loss, accuracy, static_cast<double>(samples_) / elapsed, duration(left).c_str());
  show(text);
}

void Progress::step(std::int64_t count, const char* unit, const std::string& text) {
  ++step_;
  samples_ += count;
  if (!due()) return;
  const double elapsed = std::chrono::duration<double>(shown_ - start_).count();
  const double left =
      elapsed / static_cast<double>(step_ - first_step_) * static_cast<double>(total_steps_ - step_);
  char speed[100];
  std::snprintf(speed, sizeof speed, "  %.0f %s/s  %s left", static_cast<double>(samples_) / elapsed, unit,
                duration(left).c_str());
  show("step " + std::to_string(step_) + "/" + std::to_string(total_steps_) + "  " + text + speed);
}

void Progress::note(const std::string& text) {
  if (due()) show(text);
}

void Progress::line(const std::string& text) {
  if (!enabled_) return;
  std::printf("%s%s\n", live_ ? "\r\033[K" : "", text.c_str());
  live_ = false;
  std::fflush(stdout);
}

}  // namespace apps
