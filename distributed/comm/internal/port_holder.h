#pragma once
#include <string>

namespace tapestry::distributed {

/// The process that uses the local TCP port, for error messages: "process 4711 (python train.py)". Empty if
/// the process belongs to another user, or on systems other than Linux.
std::string port_holder(int port);

}  // namespace tapestry::distributed
