#include "tapestry/distributed/comm/internal/gloo_device.h"

#if defined(TAPESTRY_HAS_GLOO)
#include <gloo/transport/tcp/address.h>
#include <gloo/transport/tcp/context.h>
#include <gloo/transport/tcp/device.h>
#include <gloo/transport/tcp/pair.h>
#include <ifaddrs.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "tapestry/core/internal/sched_slice.h"
#include "tapestry/distributed/comm/internal/block_signals.h"
#include "tapestry/distributed/comm/internal/deadline.h"
#include "tapestry/distributed/comm/internal/machine.h"
#include "tapestry/distributed/comm/internal/peer_sockets.h"

namespace tapestry::distributed {

namespace tcp = gloo::transport::tcp;

class GlooDevice final : public tcp::Device {
 public:
  explicit GlooDevice(const tcp::attr& at) : Device(at) {
    std::memcpy(&address_.storage, &at.ai_addr, static_cast<std::size_t>(at.ai_addrlen));
    address_.length = static_cast<socklen_t>(at.ai_addrlen);
    // Until May 2023, Gloo's pairs listen at the device's address as soon as they are constructed, and
    // GlooPair stops that at once. So that this opens no TCP port, the address becomes a Unix address, which
    // the kernel chooses if the length covers the family only. C++20 allows to replace a const member.
    tcp::attr unnamed;
    unnamed.ai_family = AF_UNIX;
    unnamed.ai_socktype = SOCK_STREAM;
    unnamed.ai_protocol = 0;
    unnamed.ai_addr.ss_family = AF_UNIX;
    unnamed.ai_addrlen = sizeof(sa_family_t);
    auto* const own = const_cast<tcp::attr*>(&attr_);
    std::destroy_at(own);
    std::construct_at(own, unnamed);
  }

  /// The address of this host for TCP, with port 0.
  const SocketAddress& address() const { return address_; }

 private:
  SocketAddress address_;
};

namespace {

/// One end of a connection that is made already.
class GlooPair final : public tcp::Pair {
 public:
  GlooPair(tcp::Context* context, tcp::Device* device, int peer, Milliseconds timeout)
      : Pair(context, device, peer, timeout) {}

  /// Takes over `socket`. Returns false, and leaves `socket` alone, if another process has connected to the
  /// Unix socket on which Gloo's constructor listens.
  bool take(Fd& socket) {
    const std::lock_guard lock(m_);
    if (state_ >= CONNECTED) return false;
    if (fd_ >= 0) {
      device_->unregisterDescriptor(fd_, this);
      ::close(fd_);
    }
    fd_ = socket.release();
    peer_ = tcp::Address(sockaddr_storage{});
    state_ = CONNECTED;
    device_->registerDescriptor(fd_, EPOLLIN, this);
    return true;
  }
};

class GlooContext final : public tcp::Context {
 public:
  GlooContext(const std::shared_ptr<GlooDevice>& device, int self, int count, PeerSockets sockets)
      : Context(device, self, count), sockets_(std::move(sockets)) {
    setTimeout(std::chrono::seconds(30));  // unused, because all waits pass their own limit
    for (int peer = 0; peer < count; ++peer)
      if (peer != self) createPair(peer);
  }

  std::unique_ptr<gloo::transport::Pair>& createPair(int peer) override {
    constexpr int kAttempts = 100;  // each one gives a stranger a few microseconds
    for (int attempt = 0; attempt < kAttempts; ++attempt) {
      auto pair = std::make_unique<GlooPair>(this, device_.get(), peer, getTimeout());
      if (pair->take(sockets_.to[static_cast<std::size_t>(peer)])) return getPair(peer) = std::move(pair);
    }
    fail<DistributedError>("[gloo] another process connected to this one ", kAttempts,
                           " times while the group was made; find out which process of this host connects to "
                           "all Unix sockets, and end it");
  }

 private:
  PeerSockets sockets_;
};

std::string interface_names() {
  std::set<std::string> names;
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) == 0) {
    for (const ifaddrs* i = list; i; i = i->ifa_next) {
      if (i->ifa_addr && (i->ifa_addr->sa_family == AF_INET || i->ifa_addr->sa_family == AF_INET6))
        names.insert(i->ifa_name);
    }
    freeifaddrs(list);
  }
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ", ") + name;
  return text;
}

/// The host in "tcp host:port", or empty for other stores.
std::string store_host(const Store& store) {
  const std::string text = store.str();
  if (!text.starts_with("tcp ")) return {};
  const std::string address = text.substr(4, text.find(' ', 4) - 4);
  std::string host = address.substr(0, address.rfind(':'));
  if (host.starts_with('[') && host.ends_with(']')) host = host.substr(1, host.size() - 2);
  return host;
}

std::string key(const char* what, int rank) { return "gloo/" + std::string(what) + std::to_string(rank); }

/// The local address from which this host reaches the other hosts, or empty if there is none.
std::string own_address(Store& store, int rank, int size, Deadline deadline) {
  const std::string host = store_host(store);
  std::string address = host.empty() ? "" : address_towards(host);
  if (is_loopback(address)) address.clear();
  store.set(key("from/", rank), address);
  // The host of the store may reach the store over loopback. It then takes the address towards a rank on
  // another host.
  for (int i = 0; address.empty() && i < size; ++i) {
    if (i == rank) continue;
    const std::string theirs = store.get(key("from/", i), left_until(deadline));
    if (!theirs.empty()) address = address_towards(theirs);
  }
  // If no address is known, the default route decides. These addresses are reserved for documentation.
  for (const char* const other : {"192.0.2.1", "2001:db8::1"})
    if (address.empty()) address = address_towards(other);
  return address;
}

/// The interface that the user chose, or "". A name that does not exist is an error, also if the ranks need
/// no network.
std::string chosen_interface() {
  for (const char* variable : {"TAPESTRY_INTERFACE", "GLOO_SOCKET_IFNAME"}) {
    const char* const interface = std::getenv(variable);
    if (!interface || !*interface) continue;
    const std::string names = interface_names();
    check<DistributedError>((", " + names + ", ").find(concat({", ", interface, ", "})) != std::string::npos,
                            "[gloo] ", variable, " is ", interface, ", but this host has ",
                            names.empty() ? "no interface with an address" : names,
                            "; set it to one of these interfaces, or unset it");
    return interface;
  }
  return "";
}

/// The device's address if ranks are on several hosts.
tcp::attr network_address(Store& store, int rank, int size, const std::string& interface, Deadline deadline) {
  tcp::attr attr;
  attr.iface = interface;
  attr.hostname = own_address(store, rank, size, deadline);
  check<DistributedError>(
      !attr.iface.empty() || !attr.hostname.empty(),
      "[gloo] no network interface reaches the other hosts; set TAPESTRY_INTERFACE to the one "
      "that the ranks share, one of: ",
      interface_names());
  return tcp::CreateDeviceAttr(attr);
}

/// Gloo looks up the network interface of every device, also of one that uses no network.
tcp::attr loopback_address() {
  const SocketAddress loopback = addresses_of(loopback_host(), 0).at(0);
  tcp::attr attr;
  attr.ai_family = loopback.storage.ss_family;
  attr.ai_socktype = SOCK_STREAM;
  attr.ai_protocol = 0;
  attr.ai_addr = loopback.storage;
  attr.ai_addrlen = loopback.length;
  return attr;
}

}  // namespace

std::shared_ptr<GlooDevice> open_gloo_device(Store& store, int rank, int size, bool one_host,
                                             Deadline deadline) {
  const std::string interface = chosen_interface();
  const tcp::attr at =
      one_host ? loopback_address() : network_address(store, rank, size, interface, deadline);
  const BlockSignals in_its_thread;
  const SchedSliceGuard of_its_thread;
  return std::make_shared<GlooDevice>(at);
}

std::shared_ptr<gloo::transport::Context> connect_gloo(const std::shared_ptr<GlooDevice>& device,
                                                       Store& store, int rank, int size, bool one_host,
                                                       Deadline deadline) {
  PeerSockets sockets =
      connect_peers(store, rank, size, one_host ? std::nullopt : std::optional(device->address()), deadline);
  if (sockets.refused > 0)
    std::fprintf(
        stderr,
        "tapestry: rank %d refused %d connection(s) that did not prove within 5 s that they belong to "
        "this job, the last from %s\n",
        rank, sockets.refused, sockets.refused_of.c_str());
  return std::make_shared<GlooContext>(device, rank, size, std::move(sockets));
}

}  // namespace tapestry::distributed
#endif
