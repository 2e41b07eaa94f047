#pragma once
// Runs many episodes at once: the observations of all running episodes form one batch for the policy.
#include <cstdint>
#include <vector>

#include "tapestry/apps/reinforce/policy.h"

namespace apps {

/// The steps of some episodes, one row per step.
struct Episodes {
  tapestry::Tensor observations;  ///< f32 (steps, 4)
  tapestry::Tensor actions;       ///< i64 (steps): 1 pushes right, 0 left
  tapestry::Tensor returns;  ///< f32 (steps): discounted sum of rewards from this step on, times 1 - discount
  double mean_length = 0;    ///< equals the mean undiscounted return, since each step has a reward of 1
};

/// Plays `count` episodes from random start states, with actions sampled from the policy. Uses the default
/// generator of the CPU.
Episodes play(ActorCritic& policy, std::int64_t count, double discount);

/// Plays episodes with the most likely action in each step, and returns their lengths. Episode i starts from
/// a state that depends on (seed, i) only. The episodes have the numbers `first`, `first + stride`, `first +
/// 2 * stride` and so on, below `count`.
std::vector<int> test_lengths(ActorCritic& policy, std::uint64_t seed, int count, int first, int stride);

}  // namespace apps
