#pragma once
// The store that node 0's launcher holds for its job. Not in tapestry.h: for the launcher and its tests.
#include <memory>
#include <string>

#include "tapestry/distributed/comm/store.h"
#include "tapestry/distributed/launch/options.h"

namespace tapestry::distributed::launch {

/// TAPESTRY_SECRET, else on one node a random one. Empty only if node 0 is reached by loopback, where nobody
/// else listens; otherwise several nodes must be given one: ValueError.
std::string secret_of(const LaunchOptions& options, const Variables& environment);

/// 32 hexadecimal digits from the kernel. Throws Error where it gives none.
std::string random_secret();

/// At options.port, for this machine alone if node 0 is reached by loopback.
std::unique_ptr<StoreServer> open_store(const LaunchOptions& options, const std::string& secret);

}  // namespace tapestry::distributed::launch
