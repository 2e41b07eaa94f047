#pragma once
// Stream sockets that do not block and that programs started by this process do not inherit.
#include <sys/socket.h>

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "tapestry/distributed/comm/internal/fd.h"
#include "tapestry/distributed/comm/store.h"

namespace tapestry::distributed {

/// The address of a socket, of any family.
struct SocketAddress {
  sockaddr_storage storage{};
  socklen_t length = 0;
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
  sockaddr* get() { return reinterpret_cast<sockaddr*>(&storage); }
  /// The IP address in digits; empty for another family.
  std::string host() const;
  /// The TCP port; 0 for another family.
  int port() const;
};

/// The TCP addresses of a host's name or of an IP address. If there are none, `why` becomes the reason.
std::vector<SocketAddress> addresses_of(const std::string& host, int port, std::string* why = nullptr);

/// The address that getsockname() or getpeername() returns; of length 0 if the connection has failed.
SocketAddress address_of(int socket, decltype(&::getsockname) get_name);

/// The local address from which this host reaches `host`; empty if it does not. Sends no packet.
std::string address_towards(const std::string& host);

// The functions below return 0 or the errno of the failure.

/// Makes `listener` listen at `address`, which becomes the address that the kernel chose.
int listen_at(SocketAddress& address, Fd& listener);
/// Starts to connect a new socket. If none can be made, `socket` is not open. When poll() reports POLLOUT,
/// connect_error() tells how it ended.
int start_connect(const SocketAddress& address, Fd& socket);
int connect_error(int socket);
/// Appends what has arrived to `bytes`, until it has `size` bytes. ECONNRESET if the other side has closed
/// the connection.
int receive(int socket, std::string& bytes, std::size_t size);
/// Sends what the socket has room for, and removes it from the front of `bytes`.
int send_some(int socket, std::string_view& bytes);
/// Sets an option. Does nothing if this kind of socket has no such option.
void set_option(int socket, int level, int name, int value);
/// True if the error means that this process or the system has no room for another socket.
bool no_room(int error);
/// Waits until poll() reports events or an error of the socket. False at the deadline.
bool wait_until(int socket, short events, Deadline deadline);

}  // namespace tapestry::distributed
