#pragma once
// Episodes played side by side: the policy sees all that still run as one batch.
#include <cstdint>
#include <vector>

#include "tapestry/apps/reinforce/policy.h"

namespace apps {

/// What happened in some episodes, a row a step.
struct Episodes {
  tapestry::Tensor observations;  ///< f32 (steps, 4)
  tapestry::Tensor actions;       ///< i64 (steps), 1 is right
  tapestry::Tensor returns;  ///< f32 (steps): discounted sum of the rewards from there on, times 1 - discount
  double mean_length = 0;    ///< reward is 1 a step, so this is the mean undiscounted return
};

/// Plays `count` episodes from random starts; actions are drawn from the policy. Random numbers come from the
/// default generator of the CPU.
Episodes play(ActorCritic& policy, std::int64_t count, double discount);

/// Lengths of episodes in which the likelier action is always taken. Episode i starts from a state that is a
/// function of (seed, i); those of numbers first, first + stride, ... below count are played.
std::vector<int> test_lengths(ActorCritic& policy, std::uint64_t seed, int count, int first, int stride);

}  // namespace apps
