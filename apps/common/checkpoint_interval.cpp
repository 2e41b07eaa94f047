#include "tapestry/apps/common/checkpoint_interval.h"

#include <charconv>
#include <string_view>

namespace apps {
namespace {

constexpr std::int64_t kMostSteps = 1'000'000'000'000;
constexpr double kMostMinutes = 1'000'000;

template <class T>
bool parse_number(std::string_view text, T& value) {
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && stop == text.data() + text.size();
}

}  // namespace

std::optional<CheckpointInterval> CheckpointInterval::parse(const std::string& text) {
  CheckpointInterval interval;
  if (text == "none") return interval;
  std::string_view number(text);
  number = number.substr(0, number.find_first_not_of("0123456789."));
  std::string_view unit = std::string_view(text).substr(number.size());
  if (unit.starts_with(' ')) unit.remove_prefix(1);
  if (unit == "steps" || unit == "step") {
    if (parse_number(number, interval.steps_) && interval.steps_ > 0 && interval.steps_ <= kMostSteps)
      return interval;
  } else if (unit == "minutes" || unit == "minute") {
    if (parse_number(number, interval.minutes_) && interval.minutes_ > 0 && interval.minutes_ <= kMostMinutes)
      return interval;
  }
  return std::nullopt;
}

}  // namespace apps
