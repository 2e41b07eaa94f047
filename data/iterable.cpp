#include "tapestry/data/iterable.h"

namespace tapestry::data::detail {

void check_shard_options(std::int64_t shards, int rank, int world_size) {
  check(shards >= 1 && shards <= 1 << 20, "[IterableLoader] shards is ", shards, "; it must be from 1 to ",
        1 << 20, ", or 0 for one per worker");
  check(world_size >= 1 && rank >= 0 && rank < world_size, "[IterableLoader] rank ", rank,
        " is not one of a world of ", world_size);
}

}  // namespace tapestry::data::detail
