#include <sstream>

#include "tapestry/core/generator.h"
#include "tapestry/distributed/common/internal/generator_states.h"
#include "tapestry/distributed/common/seeds.h"

namespace tapestry::distributed {
namespace {

template <class F>
void for_each_device(const F& fn) {
  for (const DeviceType type : {DeviceType::cpu, DeviceType::cuda})
    for (int i = 0; i < device_count(type); ++i) fn(Device(type, i));
}

}  // namespace

std::string generator_states() {
  std::string text;
  for_each_device([&](Device device) {
    const auto [seed, offset] = current_generator(device).state();
    text +=
        (text.empty() ? "" : " ") + device.str() + ' ' + std::to_string(seed) + ' ' + std::to_string(offset);
  });
  return text;
}

GeneratorStates parse_generator_states(const char* op, const std::string& text) {
  std::istringstream in(text);
  GeneratorStates states;
  for (std::string device; in >> device;) {
    if (states.empty() && device.find('=') != std::string::npos) continue;
    std::uint64_t seed = 0, offset = 0;
    // The stream would read "-1" as 2^64 - 1.
    bool valid = !(in >> seed >> offset).fail() && text.find('-') == std::string::npos;
    try {
      states.push_back({Device(device), {seed, offset}});
    } catch (const Error&) {  // not the name of a device
      valid = false;
    }
    check<IoError>(valid, "[", op, "] the generator states in the checkpoint are \"", text,
                   "\", not device, seed and offset in turn; resume from another checkpoint");
  }
  check<IoError>(!states.empty(), "[", op,
                 "] the generator states in the checkpoint are empty; resume from another checkpoint");
  return states;
}

std::string place_in(const std::string& text) {
  const std::size_t end = text.rfind('=');
  return end == std::string::npos ? "" : text.substr(0, text.find(' ', end));
}

void set_generator_states(const GeneratorStates& states) {
  for_each_device([&](Device d) {
    for (const auto& [device, state] : states)
      if (d == device) current_generator(d).set_state(state);
  });
}

void derive_generator_states(const GeneratorStates& of_rank_0, int rank) {
  for_each_device([&](Device d) {
    for (const auto& [device, state] : of_rank_0)
      if (d == device) current_generator(d).manual_seed(rank_seed(state[0], rank));
  });
}

}  // namespace tapestry::distributed
