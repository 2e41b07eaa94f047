#pragma once
#include <string>

namespace tapestry::distributed {

/// Who has the local TCP port, for a message: "process 4711 (python train.py)". Empty where the system does not
/// say: not Linux, or another user's process.
std::string port_holder(int port);

}  // namespace tapestry::distributed
