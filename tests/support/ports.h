#pragma once
// A TCP port for a test's server.

namespace tests {

/// Returns a port of 127.0.0.1 that nobody listens at. It lies below the range of ephemeral ports, which
/// starts at 32768 on Linux: the kernel gives it to no other process as the port of a connection or of a
/// listener at port 0. No other process that calls this function gets it before this process ends. Throws
/// std::runtime_error if there is none.
int free_port();

}  // namespace tests
