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

std::uint64_t coordinate_seed(const Mesh& mesh, std::uint64_t seed, int rank) {
  const std::vector<int> place = mesh.coordinates(rank);
  int data = 0, parts = 1, stage = 0;
  for (std::size_t i = 0; i < place.size(); ++i) {
    const auto& [name, size] = mesh.axes()[i];
    if (name == "tensor") continue;
    if (name == "pipeline") {
      stage = place[i];
    } else {
      data = data * size + place[i];
      parts *= size;
    }
  }
  const std::uint64_t own = parts > 1 ? rank_seed(seed, data) : seed;
  return stage == 0 ? own : rank_seed(own, stage);
}

void manual_seed_by_coordinate(const Mesh& mesh, std::uint64_t seed) {
  manual_seed(mesh.world() ? coordinate_seed(mesh, seed, mesh.world()->rank()) : seed);
}

}  // namespace tapestry::distributed
