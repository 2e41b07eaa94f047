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

void Progress::step(int epoch, std::int64_t step_in_epoch, std::int64_t samples, double loss,
                    double accuracy) {
  ++step_;
  samples_ += samples;
  if (!enabled_) return;
  const Clock::time_point now = Clock::now();
  const double since = std::chrono::duration<double>(now - shown_).count();
  if (since < (terminal_ ? 0.1 : interval_s_)) return;
  shown_ = now;
  const double elapsed = std::chrono::duration<double>(now - start_).count();
  const double left =
      elapsed / static_cast<double>(step_ - first_step_) * static_cast<double>(total_steps_ - step_);
  char text[160];
  std::snprintf(text, sizeof text,
                "epoch %d/%d  step %lld/%lld  loss %.4f  accuracy %.3f  %.0f samples/s  %s left", epoch,
                epochs_, static_cast<long long>(step_in_epoch), static_cast<long long>(steps_per_epoch_),
                loss, accuracy, static_cast<double>(samples_) / elapsed, duration(left).c_str());
  if (terminal_) {
    winsize size{};
    const bool known = ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
    std::printf("\r\033[K%.*s", known ? size.ws_col - 1 : 79,
                text);  // cut off, because a wrapped line cannot be redrawn
    live_ = true;
  } else {
    std::printf("%s\n", text);
  }
  std::fflush(stdout);
}

void Progress::line(const std::string& text) {
  if (!enabled_) return;
  std::printf("%s%s\n", live_ ? "\r\033[K" : "", text.c_str());
  live_ = false;
  std::fflush(stdout);
}

}  // namespace apps
