#pragma once
#include "tapestry/distributed/comm/store.h"

namespace tapestry::distributed {

/// Returns once `size` processes, each with a rank of its own, have called it with this store, which no other
/// job or attempt may have used. Throws TimeoutError naming the ranks that did not come; on all who wait,
/// DistributedError where two processes have one rank, or not all the same idea of `size`.
void rendezvous(Store& store, int rank, int size, Milliseconds timeout);

}  // namespace tapestry::distributed
