#pragma once
// Random number generators, based on the counter-based Philox 4x32-10 (Salmon et al., "Parallel random
// numbers: as easy as 1, 2, 3", SC 2011). The n-th number is a function of the seed and n, so CPU and GPU
// give the same bits.
#include <array>
#include <cstdint>
#include <mutex>

#include "tapestry/core/device.h"

namespace tapestry {

/// The part of a random stream that one kernel call uses: the counters offset, offset + 1, ..., as many as
/// the caller of Generator::take() requested. Each counter gives four 32-bit numbers.
struct PhiloxRange {
  std::uint64_t seed = 0;
  std::uint64_t offset = 0;
};

/// A seed and a position in its random stream. Thread-safe.
class Generator {
 public:
  explicit Generator(std::uint64_t seed = 0) : state_{seed, 0} {}
  /// Returns the next `counters` counters, and advances the position past them.
  PhiloxRange take(std::uint64_t counters);
  /// Sets the seed, and the position to 0.
  void manual_seed(std::uint64_t seed);
  std::uint64_t seed() const;
  /// The complete state, for saving and restoring: {seed, offset}.
  std::array<std::uint64_t, 2> state() const;
  void set_state(const std::array<std::uint64_t, 2>& state);

 private:
  mutable std::mutex mutex_;
  PhiloxRange state_;
};

/// The generator that random operations on this device use if the context has none. Throws DeviceError if the
/// device does not exist.
Generator& default_generator(Device device);
/// The generator of the context if one is set, else default_generator(device). The meta device has none of
/// its own: its tensors use the generator of the device for which they are meant (see DeviceGuard), so that a
/// model that is built there reserves the random numbers that its construction on that device would draw.
Generator& current_generator(Device device);
/// Seeds the default generators of all devices, as torch.manual_seed does. Every device gets the same seed,
/// so a model draws the same numbers on every device (normal numbers may differ in their last digits).
void manual_seed(std::uint64_t seed);

}  // namespace tapestry
