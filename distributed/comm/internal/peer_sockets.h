#pragma once
// Connects the ranks of a group with one another by stream sockets, and keeps all other processes out.
#include <optional>
#include <string>
#include <vector>

#include "tapestry/distributed/comm/internal/sockets.h"

namespace tapestry::distributed {

/// The sockets of a rank.
struct PeerSockets {
  std::vector<Fd> to;  ///< one socket per rank, not blocking; none at the rank itself
  /// Connections that did not prove in time that they come from a rank of this job. They come from other
  /// processes, or from a rank that stalled for 5 s and then connected again.
  int refused = 0;
  std::string refused_of;  ///< the last one of them: "127.0.0.1:4711", or "process 4711 of user 1000"
};

/// Returns sockets to all other ranks, which must call it too. Each rank listens at `here` (a TCP address
/// whose port is 0), or at a Unix address without a name in the file system if `here` is not set. Both sides
/// of a connection prove that they know a random key which the listening rank published in `store`. A
/// connection without this proof is closed and counted, and does no other harm. If a connection breaks before
/// both sides have the proof, the rank connects again. No rank listens any more when this returns. Throws
/// TimeoutError, which names the ranks without a connection and what went wrong.
PeerSockets connect_peers(Store& store, int rank, int size, const std::optional<SocketAddress>& here,
                          Deadline deadline);

}  // namespace tapestry::distributed
