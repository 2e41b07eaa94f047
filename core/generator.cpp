#include "tapestry/core/generator.h"

#include "tapestry/core/context.h"

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
  const std::lock_guard lock(mutex_);
  const PhiloxRange range = state_;
  state_.offset += counters;
  return range;
}

void Generator::manual_seed(std::uint64_t seed) {
  const std::lock_guard lock(mutex_);
  state_ = {seed, 0};
}

std::uint64_t Generator::seed() const {
  const std::lock_guard lock(mutex_);
  return state_.seed;
}

std::array<std::uint64_t, 2> Generator::state() const {
  const std::lock_guard lock(mutex_);
  return {state_.seed, state_.offset};
}

void Generator::set_state(const std::array<std::uint64_t, 2>& state) {
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
