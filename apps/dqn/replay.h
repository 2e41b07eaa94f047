#pragma once
// The memory of past steps from which DQN learns (Lin, "Self-improving reactive agents based on reinforcement
// learning, planning and teaching", 1992).
#include <cstdint>
#include <span>

#include "tapestry/core/tensor.h"

namespace apps {

/// Steps of the environment, one row per step.
struct Transitions {
  tapestry::Tensor observations;       ///< f32 (n, size)
  tapestry::Tensor actions;            ///< i64 (n)
  tapestry::Tensor rewards;            ///< f32 (n)
  tapestry::Tensor next_observations;  ///< f32 (n, size)
  tapestry::Tensor terminal;           ///< f32 (n): 1 if nothing follows the step, else 0
};

/// Keeps the last `capacity` steps; a new one replaces the oldest.
class ReplayBuffer {
 public:
  /// Throws ValueError unless both are at least 1.
  ReplayBuffer(std::int64_t capacity, std::int64_t observation_size);

  /// `terminal` means that the episode failed at this step. An episode that only ran out of time is not
  /// terminal: its last state has a value like any other.
  void add(std::span<const float> observation, std::int64_t action, float reward,
           std::span<const float> next_observation, bool terminal);
  /// Draws steps uniformly and with replacement, by the default generator of the CPU. Throws ValueError if
  /// the buffer is empty.
  Transitions sample(std::int64_t count) const;
  std::int64_t size() const { return size_; }
  /// All rows, of which the first size() are used.
  const Transitions& rows() const { return rows_; }

 private:
  Transitions rows_;
  std::int64_t capacity_, size_ = 0, next_ = 0;
};

}  // namespace apps
