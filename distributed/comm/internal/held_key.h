#pragma once
#include <memory>
#include <string>

#include "tapestry/distributed/comm/store.h"

namespace tapestry::distributed {

/// Sets a key of the StoreServer at host:port if it is absent. Returns the connection that holds it, or null
/// if the key exists. The server erases the key when the connection ends: the handle is destroyed, its
/// process dies, or its host is silent for 11 s. The holder may change the value (compare_set), and nobody
/// may erase it. Throws the errors of tcp_store().
std::shared_ptr<void> hold_key(const std::string& host, int port, const std::string& key,
                               const std::string& value, const TcpOptions& options);

}  // namespace tapestry::distributed
