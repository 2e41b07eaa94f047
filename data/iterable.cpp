#include "tapestry/data/iterable.h"

namespace tapestry::data::detail {

void check_iterable_options(std::int64_t batch_size, std::int64_t shards, int num_workers, int prefetch,
                            int rank, int world_size) {
  check(batch_size >= 1, "[IterableLoader] batch_size is ", batch_size, "; it must be at least 1");
  check(shards >= 1 && shards <= 1 << 20, "[IterableLoader] shards is ", shards, "; it must be from 1 to ",
        1 << 20, ", or 0 for one per worker");
  check(num_workers >= 0 && num_workers <= 1024, "[IterableLoader] num_workers is ", num_workers,
        "; it must be from 0 to 1024");
  check(prefetch >= 1 && prefetch <= 1024, "[IterableLoader] prefetch is ", prefetch,
        "; it must be from 1 to 1024");
  check(world_size >= 1 && rank >= 0 && rank < world_size, "[IterableLoader] rank ", rank,
        " is not one of a world of ", world_size);
}

}  // namespace tapestry::data::detail
