#pragma once
#include "tapestry/distributed/comm/store.h"

namespace tapestry::distributed {

/// Waits until `size` processes with different ranks have called it with this store. No other job or attempt
/// may have used the store. Throws TimeoutError, which names the ranks that did not come. If two processes
/// have the same rank, or if they disagree about `size`, all ranks that wait throw DistributedError.
void rendezvous(Store& store, int rank, int size, Milliseconds timeout);

}  // namespace tapestry::distributed
