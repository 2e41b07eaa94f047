#pragma once
// Random seeds that differ between ranks, or between coordinates of a mesh.
#include <cstdint>

#include "tapestry/distributed/comm/process_group.h"
#include "tapestry/distributed/mesh/mesh.h"

namespace tapestry::distributed {

/// Derives a seed per rank from a common one, for numbers that must differ between ranks (dropout,
/// environments, augmentation). It is Philox 4x32-10 of (seed, rank), so neighbouring seeds and ranks give
/// unrelated streams. Numbers that must agree (initial weights, the sampler's order) use `seed` itself.
std::uint64_t rank_seed(std::uint64_t seed, int rank);

/// Calls manual_seed(rank_seed(seed, group.rank())). Call it after the model has been constructed, so that
/// the initial weights agree.
void manual_seed_by_rank(const ProcessGroup& group, std::uint64_t seed);

/// Where a rank is along the axes that its random numbers follow: which part of the samples it computes, and
/// which stage of a pipeline. Ranks at one place, such as those that divide a layer, draw the same numbers.
struct RandomPlace {
  int data = 0, data_size = 1;
  int stage = 0, stages = 1;
};
/// The place of a rank of a mesh, for a program without a Strategy (which has a random_place() of its own).
/// The names of the axes decide: the stage is the coordinate along `pipeline`, and the data coordinate is
/// that along all other axes but `tensor` together.
RandomPlace random_place(const Mesh& mesh, int rank);

/// The seed of a place, for dropout and other random numbers that follow the samples and the layers. It
/// depends on the data coordinate d and the stage s. Stage 0 has rank_seed(seed, d) if there are several data
/// coordinates, and `seed` otherwise. A stage s > 0 has rank_seed(x, s), where x is the seed of stage 0.
std::uint64_t coordinate_seed(const RandomPlace& place, std::uint64_t seed);
/// The seed of random_place(mesh, rank).
std::uint64_t coordinate_seed(const Mesh& mesh, std::uint64_t seed, int rank);

/// Calls manual_seed() with the coordinate_seed() of the place. Pass Strategy::random_place(). Call it after
/// the model has been constructed, so that the initial weights agree.
void manual_seed_by_coordinate(const RandomPlace& place, std::uint64_t seed);
/// The same for this rank's place in a mesh without a Strategy. Over devices, calls manual_seed(seed).
void manual_seed_by_coordinate(const Mesh& mesh, std::uint64_t seed);

}  // namespace tapestry::distributed
