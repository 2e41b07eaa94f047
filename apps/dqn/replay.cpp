#include "tapestry/apps/dqn/replay.h"

#include <algorithm>

#include "tapestry/tapestry.h"

namespace apps {

using namespace tapestry;

ReplayBuffer::ReplayBuffer(std::int64_t capacity, std::int64_t observation_size) : capacity_(capacity) {
  check(capacity >= 1 && observation_size >= 1, "[ReplayBuffer] the capacity is ", capacity,
        " and observations have ", observation_size, " numbers; use at least 1");
  rows_ = {zeros({capacity, observation_size}), zeros({capacity}, kInt64), zeros({capacity}),
           zeros({capacity, observation_size}), zeros({capacity})};
}

void ReplayBuffer::add(std::span<const float> observation, std::int64_t action, float reward,
                       std::span<const float> next_observation, bool terminal) {
  const std::int64_t width = rows_.observations.size(1);
  for (const auto& [numbers, rows] :
       {std::pair(observation, rows_.observations), std::pair(next_observation, rows_.next_observations)}) {
    check(static_cast<std::int64_t>(numbers.size()) == width, "[ReplayBuffer] an observation has ",
          numbers.size(), " numbers; expected ", width);
    std::copy(numbers.begin(), numbers.end(), rows.data<float>() + next_ * width);
  }
  rows_.actions.data<std::int64_t>()[next_] = action;
  rows_.rewards.data<float>()[next_] = reward;
  rows_.terminal.data<float>()[next_] = terminal ? 1.0f : 0.0f;
  next_ = (next_ + 1) % capacity_;
  size_ = std::min(size_ + 1, capacity_);
}

Transitions ReplayBuffer::sample(std::int64_t count) const {
  check(size_ > 0, "[ReplayBuffer] the buffer is empty; add steps first");
  const Tensor picked = randint(0, size_, {count});
  const auto rows = [&](const Tensor& x) { return x.index_select(0, picked); };
  return {rows(rows_.observations), rows(rows_.actions), rows(rows_.rewards), rows(rows_.next_observations),
          rows(rows_.terminal)};
}

}  // namespace apps
