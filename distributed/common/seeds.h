#pragma once
// Random seeds that differ between ranks.
#include <cstdint>

#include "tapestry/distributed/comm/process_group.h"

namespace tapestry::distributed {

/// Derives a seed per rank from a common one, for numbers that must differ between ranks (dropout,
/// environments, augmentation). It is Philox 4x32-10 of (seed, rank), so neighbouring seeds and ranks give
/// unrelated streams. Numbers that must agree (initial weights, the sampler's order) use `seed` itself.
std::uint64_t rank_seed(std::uint64_t seed, int rank);

/// Calls manual_seed(rank_seed(seed, group.rank())). Call it after the model has been constructed, so that
/// the initial weights agree.
void manual_seed_by_rank(const ProcessGroup& group, std::uint64_t seed);

}  // namespace tapestry::distributed
