#include "tapestry/distributed/common/seeds.h"

#include "tapestry/core/generator.h"
#include "tapestry/core/philox.h"

namespace tapestry::distributed {

std::uint64_t rank_seed(std::uint64_t seed, int rank) {
  constexpr std::uint64_t stream = ~std::uint64_t{0};  // a generator seeded with `seed` uses other streams
  const Philox4 bits = philox(seed, static_cast<std::uint64_t>(rank), stream);
  return bits.v[0] | static_cast<std::uint64_t>(bits.v[1]) << 32;
}

void manual_seed_by_rank(const ProcessGroup& group, std::uint64_t seed) {
  manual_seed(rank_seed(seed, group.rank()));
}

RandomPlace random_place(const Mesh& mesh, int rank) {
  const std::vector<int> coordinates = mesh.coordinates(rank);
  RandomPlace place;
  for (std::size_t i = 0; i < coordinates.size(); ++i) {
    const auto& [name, size] = mesh.axes()[i];
    if (name == "tensor") continue;
    if (name == "pipeline") {
      place.stage = coordinates[i];
      place.stages = size;
    } else {
      place.data = place.data * size + coordinates[i];
      place.data_size *= size;
    }
  }
  return place;
}

std::uint64_t coordinate_seed(const RandomPlace& place, std::uint64_t seed) {
  const std::uint64_t own = place.data_size > 1 ? rank_seed(seed, place.data) : seed;
  return place.stage == 0 ? own : rank_seed(own, place.stage);
}

std::uint64_t coordinate_seed(const Mesh& mesh, std::uint64_t seed, int rank) {
  return coordinate_seed(random_place(mesh, rank), seed);
}

void manual_seed_by_coordinate(const RandomPlace& place, std::uint64_t seed) {
  manual_seed(coordinate_seed(place, seed));
}
void manual_seed_by_coordinate(const Mesh& mesh, std::uint64_t seed) {
  manual_seed(mesh.world() ? coordinate_seed(mesh, seed, mesh.world()->rank()) : seed);
}

}  // namespace tapestry::distributed
