#include "tapestry/core/generator.h"

#include <algorithm>

#include "tapestry/core/context.h"
#include "tapestry/core/error.h"
#include "tapestry/core/internal/capture_state.h"
#include "tapestry/core/internal/captured_range.h"

namespace tapestry {
namespace {

struct Defaults {
  Generator of[kNumDeviceTypes][kMaxDevices];
};

// Never destroyed, because a thread may draw numbers while the program ends.
Defaults& defaults() {
  static Defaults& all = *new Defaults;
  return all;
}

}  // namespace

PhiloxRange Generator::take(std::uint64_t counters) {
  if (detail::CaptureState* const capture = detail::current_capture()) [[unlikely]] {
    if (this != capture->generator)
      detail::refuse_in_capture("Generator",
                                "draw numbers on the captured device, from its current generator");
    const std::uint64_t first = capture->drawn;
    capture->drawn += counters;
    capture->most_drawn = std::max(capture->most_drawn, capture->drawn);
    return {reinterpret_cast<std::uint64_t>(capture->cell), kCapturedRange | first};
  }
  const std::lock_guard lock(mutex_);
  const PhiloxRange range = state_;
  state_.offset += counters;
  return range;
}

void Generator::manual_seed(std::uint64_t seed) {
  detail::refuse_in_capture("manual_seed", "seed outside of the step");
  const std::lock_guard lock(mutex_);
  state_ = {seed, 0};
}

std::uint64_t Generator::seed() const {
  const std::lock_guard lock(mutex_);
  return state_.seed;
}

std::array<std::uint64_t, 2> Generator::state() const {
  // checkpoint() restores this state in backward, to draw the same numbers again.
  if (const detail::CaptureState* const capture = detail::current_capture())
    if (this == capture->generator)
      return {reinterpret_cast<std::uint64_t>(capture->cell), kCapturedRange | capture->drawn};
  const std::lock_guard lock(mutex_);
  return {state_.seed, state_.offset};
}

void Generator::set_state(const std::array<std::uint64_t, 2>& state) {
  if (detail::CaptureState* const capture = detail::current_capture();
      capture && this == capture->generator) {
    if (state[0] != reinterpret_cast<std::uint64_t>(capture->cell) || (state[1] & kCapturedRange) == 0)
      detail::refuse_in_capture("Generator::set_state", "set the state outside of the step");
    capture->drawn = state[1] & ~kCapturedRange;
    return;
  }
  const std::lock_guard lock(mutex_);
  state_ = {state[0], state[1]};
}

Generator& default_generator(Device device) {
  check_device("default_generator", device);
  return defaults().of[static_cast<int>(device.type)][device.index];
}

Generator& current_generator(Device device) {
  Generator* const own = current_context().generator;
  if (own) return *own;
  if (!device.is_meta()) return default_generator(device);
  const Context& context = current_context();
  return default_generator(context.device.is_meta() ? context.real_device : context.device);
}

void manual_seed(std::uint64_t seed) {
  for (auto& type : defaults().of)
    for (Generator& generator : type) generator.manual_seed(seed);
}

}  // namespace tapestry
