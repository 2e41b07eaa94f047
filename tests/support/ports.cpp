#include "tests/support/ports.h"

#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstdio>
#include <stdexcept>
#include <string>

namespace tests {
namespace {

constexpr int kFirst = 12000, kLast = 31999;

int bound_socket(int family, const void* address, std::size_t bytes) {
  const int fd = socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) throw std::runtime_error("no socket for the search of a free port");
  if (bind(fd, static_cast<const sockaddr*>(address), static_cast<socklen_t>(bytes)) == 0) return fd;
  close(fd);
  return -1;
}

/// True if this process now owns the abstract Unix socket named after the port. It stays open until the
/// process ends, so that no other test gets the port.
bool reserve(int port) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::snprintf(address.sun_path + 1, sizeof(address.sun_path) - 1, "tapestry-test-port-%d", port);
  return bound_socket(AF_UNIX, &address, sizeof(address)) >= 0;
}

bool can_listen(int port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_ANY);
  address.sin_port = htons(static_cast<std::uint16_t>(port));
  const int fd = bound_socket(AF_INET, &address, sizeof(address));
  if (fd >= 0) close(fd);
  return fd >= 0;
}

}  // namespace

int free_port() {
  static int next = kFirst + static_cast<int>(getpid() % 200) * 100;
  for (int tries = 0; tries <= kLast - kFirst; ++tries) {
    const int port = next;
    next = port == kLast ? kFirst : port + 1;
    if (reserve(port) && can_listen(port)) return port;
  }
  throw std::runtime_error("no free port between " + std::to_string(kFirst) + " and " +
                           std::to_string(kLast));
}

}  // namespace tests
