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

}  // namespace tapestry::distributed
