#pragma once
// Starts the store that node 0's launcher runs for its job.
#include <memory>
#include <string>

#include "tapestry/distributed/comm/store.h"
#include "tapestry/distributed/launch/internal/options.h"

namespace tapestry::distributed::launch {

/// Returns TAPESTRY_SECRET, or a random secret for a job on one node. The secret is empty only if several
/// nodes rendezvous over loopback. Throws ValueError if several nodes rendezvous over a network without a
/// secret.
std::string secret_of(const LaunchOptions& options, const Variables& environment);

/// Returns 32 random hexadecimal digits. Throws Error if the kernel gives no random bytes.
std::string random_secret();

/// Starts the store at options.port. It listens on loopback only if node 0's address is a loopback address.
std::unique_ptr<StoreServer> open_store(const LaunchOptions& options, const std::string& secret);

}  // namespace tapestry::distributed::launch
