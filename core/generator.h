#pragma once
// Random numbers: the counter-based Philox 4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2,
// 3", SC 2011). The n-th number of a seed is a function of (seed, n), so CPU and GPU give the same bits.
#include <array>
#include <cstdint>
#include <mutex>

#include "tapestry/core/device.h"

namespace tapestry {

/// A piece of the random stream handed to one kernel: it may use counters offset, offset + 1, ... as many as
/// it asked for. Each counter gives four 32-bit numbers.
struct PhiloxRange {
  std::uint64_t seed = 0;
  std::uint64_t offset = 0;
};

/// A position in the stream of one seed. Thread-safe.
class Generator {
 public:
  explicit Generator(std::uint64_t seed = 0) : state_{seed, 0} {}
  /// Takes the next `counters` counters.
  PhiloxRange take(std::uint64_t counters);
  void manual_seed(std::uint64_t seed);
  std::uint64_t seed() const;
  /// The whole state, to save and to restore: {seed, offset}.
  std::array<std::uint64_t, 2> state() const;
  void set_state(const std::array<std::uint64_t, 2>& state);

 private:
  mutable std::mutex mutex_;
  PhiloxRange state_;
};

/// The generator that random operations on this device use. Throws DeviceError when the device does not
/// exist.
Generator& default_generator(Device device);
/// The context's generator if one is set, else the device's default.
Generator& current_generator(Device device);
/// Seeds the default generators of all devices, as torch.manual_seed does. Every device gets the same seed,
/// so one model gives the same numbers wherever it runs.
void manual_seed(std::uint64_t seed);

}  // namespace tapestry
