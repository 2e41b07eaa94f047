#pragma once
// Gloo's connections between the ranks of a group. Gloo itself accepts the first connection that arrives at
// its ports, from any process. So connect_peers() makes the connections, and Gloo receives sockets that are
// connected.
#include <memory>

#include "tapestry/distributed/comm/store.h"

namespace gloo::transport {
class Context;
}

namespace tapestry::distributed {

/// Gloo's thread, and the network address of this rank. Several contexts can share it.
class GlooDevice;

/// `one_host` says that all ranks share a kernel and a network namespace. Otherwise the device listens at the
/// interface that TAPESTRY_INTERFACE names, or at the address from which this host reaches the others. Throws
/// DistributedError if there is no such interface.
std::shared_ptr<GlooDevice> open_gloo_device(Store& store, int rank, int size, bool one_host,
                                             Deadline deadline);

/// Connects all ranks with one another; all of them must call it. Ranks of one host use Unix sockets and open
/// no TCP port. Throws the errors of connect_peers(). A line on standard error reports connections that did
/// not come from this job.
std::shared_ptr<gloo::transport::Context> connect_gloo(const std::shared_ptr<GlooDevice>& device,
                                                       Store& store, int rank, int size, bool one_host,
                                                       Deadline deadline);

}  // namespace tapestry::distributed
