#include "tapestry/distributed/comm/internal/sockets.h"

#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>

#include "tapestry/distributed/comm/internal/deadline.h"

namespace tapestry::distributed {

std::string SocketAddress::host() const {
  char text[NI_MAXHOST];
  const bool ip = storage.ss_family == AF_INET || storage.ss_family == AF_INET6;
  return ip && ::getnameinfo(get(), length, text, sizeof text, nullptr, 0, NI_NUMERICHOST) == 0 ? text : "";
}

int SocketAddress::port() const {
  static_assert(offsetof(sockaddr_in, sin_port) == offsetof(sockaddr_in6, sin6_port));
  const bool ip = storage.ss_family == AF_INET || storage.ss_family == AF_INET6;
  return ip ? ntohs(reinterpret_cast<const sockaddr_in&>(storage).sin_port) : 0;
}

std::vector<SocketAddress> addresses_of(const std::string& host, int port, std::string* why) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int error =
      ::getaddrinfo(host.empty() ? nullptr : host.c_str(), std::to_string(port).c_str(), &hints, &found);
  if (error != 0 && why) *why = error == EAI_SYSTEM ? std::strerror(errno) : ::gai_strerror(error);
  std::vector<SocketAddress> addresses;
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> owner(found, &::freeaddrinfo);
  for (const addrinfo* i = found; error == 0 && i; i = i->ai_next) {
    SocketAddress& address = addresses.emplace_back();
    address.length = i->ai_addrlen;
    std::memcpy(&address.storage, i->ai_addr, i->ai_addrlen);
  }
  return addresses;
}

SocketAddress address_of(int socket, decltype(&::getsockname) get_name) {
  SocketAddress address{.length = sizeof address.storage};
  return get_name(socket, address.get(), &address.length) == 0 ? address : SocketAddress();
}

std::string address_towards(const std::string& host) {
  for (const SocketAddress& there : addresses_of(host, 9)) {
    const Fd socket(::socket(there.storage.ss_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    if (socket.open() && ::connect(socket.get(), there.get(), there.length) == 0)
      return address_of(socket.get(), ::getsockname).host();
  }
  return {};
}

int listen_at(SocketAddress& address, Fd& listener) {
  listener = Fd(::socket(address.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!listener.open()) return errno;
  set_option(listener.get(), SOL_SOCKET, SO_REUSEADDR, 1);  // earlier connections may be in TIME_WAIT
  if (address.storage.ss_family == AF_INET6) set_option(listener.get(), IPPROTO_IPV6, IPV6_V6ONLY, 0);
  if (::bind(listener.get(), address.get(), address.length) != 0 || ::listen(listener.get(), SOMAXCONN) != 0)
    return errno;
  address = address_of(listener.get(), ::getsockname);
  return address.length == 0 ? errno : 0;
}

int start_connect(const SocketAddress& address, Fd& socket) {
  socket = Fd(::socket(address.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  const bool ok = socket.open() && ::connect(socket.get(), address.get(), address.length) == 0;
  return ok || errno == EINPROGRESS ? 0 : errno;
}

int connect_error(int socket) {
  int error = 0;
  socklen_t size = sizeof error;
  return ::getsockopt(socket, SOL_SOCKET, SO_ERROR, &error, &size) == 0 ? error : errno;
}

int receive(int socket, std::string& bytes, std::size_t size) {
  char buffer[64 << 10];
  while (bytes.size() < size) {
    const std::size_t most = std::min(sizeof buffer, size - bytes.size());
    const ssize_t n = ::recv(socket, buffer, most, MSG_DONTWAIT);
    if (n > 0) bytes.append(buffer, static_cast<std::size_t>(n));
    else if (n == 0) return ECONNRESET;
    else if (errno == EAGAIN) return 0;
    else if (errno != EINTR) return errno;
    if (n > 0 && static_cast<std::size_t>(n) < most) return 0;  // saves a call that returns EAGAIN
  }
  return 0;
}

int send_some(int socket, std::string_view& bytes) {
  while (!bytes.empty()) {
    const ssize_t n = ::send(socket, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n >= 0) bytes.remove_prefix(static_cast<std::size_t>(n));
    else if (errno == EAGAIN) return 0;
    else if (errno != EINTR) return errno;
  }
  return 0;
}

void set_option(int socket, int level, int name, int value) {
  static_cast<void>(::setsockopt(socket, level, name, &value, sizeof value));
}

bool no_room(int error) { return error == EMFILE || error == ENFILE || error == ENOBUFS || error == ENOMEM; }

bool wait_until(int socket, short events, Deadline deadline) {
  pollfd one{socket, events, 0};
  for (;;) {
    const int left = poll_timeout(deadline);
    if (::poll(&one, 1, left) > 0) return true;
    if (left == 0) return false;
  }
}

}  // namespace tapestry::distributed
