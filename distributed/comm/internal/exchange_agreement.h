#pragma once
// Whether the ranks of one host use shared memory.
#include <memory>

#include "tapestry/distributed/comm/backend.h"
#include "tapestry/distributed/comm/internal/host_exchange.h"

namespace tapestry::distributed {

/// Collective over `backend`. Rank 0 offers a segment, the other ranks open it, and each rank tells all
/// others whether it succeeded. Returns null on all ranks unless all of them succeeded. Ranks that have
/// shared memory switched off take part too, because the others cannot know.
std::unique_ptr<HostExchange> agree_on_exchange(Backend& backend, bool shared_memory, Deadline deadline);

}  // namespace tapestry::distributed
