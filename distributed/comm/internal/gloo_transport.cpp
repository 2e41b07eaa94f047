#include "tapestry/distributed/comm/internal/gloo_transport.h"

#if defined(TAPESTRY_HAS_GLOO)
#include <arpa/inet.h>
#include <gloo/transport/context.h>
#include <gloo/transport/device.h>
#include <gloo/transport/pair.h>
#include <gloo/transport/tcp/device.h>
#include <gloo/transport/unbound_buffer.h>
#include <ifaddrs.h>
#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <set>
#include <utility>

#include "tapestry/core/internal/sched_slice.h"
#include "tapestry/distributed/comm/internal/block_signals.h"
#include "tapestry/distributed/comm/internal/deadline.h"
#include "tapestry/distributed/comm/internal/machine.h"

namespace tapestry::distributed {
namespace {

constexpr std::uint64_t kSentinelSlot = ~std::uint64_t{0};

/// Identifies the kernel and the network namespace. Processes with the same identity reach one another over
/// loopback.
std::string host_identity() {
  char network[64] = "";
  const ssize_t length = readlink("/proc/self/ns/net", network, sizeof network - 1);
  return boot_id() + " " + std::string(network, length > 0 ? static_cast<std::size_t>(length) : 0) + " " +
         host_name();
}

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

/// The local address from which this host reaches `host`, or empty if `host` cannot be reached. Sends no
/// packet.
std::string address_towards(const std::string& host) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_DGRAM;
  addrinfo* found = nullptr;
  if (getaddrinfo(host.c_str(), "9", &hints, &found) != 0) return {};
  std::string address;
  for (const addrinfo* i = found; i && address.empty(); i = i->ai_next) {
    const int fd = socket(i->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0) continue;
    sockaddr_storage self{};
    socklen_t length = sizeof self;
    char text[NI_MAXHOST];
    if (::connect(fd, i->ai_addr, i->ai_addrlen) == 0 &&
        getsockname(fd, reinterpret_cast<sockaddr*>(&self), &length) == 0 &&
        getnameinfo(reinterpret_cast<sockaddr*>(&self), length, text, sizeof text, nullptr, 0,
                    NI_NUMERICHOST) == 0)
      address = text;
    close(fd);
  }
  freeaddrinfo(found);
  return address;
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

/// Publishes this rank's value under the name `what`, and returns the values of all ranks, by rank.
std::vector<std::string> exchange(Store& store, const char* what, int rank, int size, const std::string& mine,
                                  Deadline deadline) {
  store.set(key(what, rank), mine);
  std::vector<std::string> all;
  for (int i = 0; i < size; ++i) {
    try {
      all.push_back(store.get(key(what, i), left_until(deadline)));
    } catch (const TimeoutError&) {
      std::string absent;
      for (int j = i; j < size; ++j) {
        if (!store.try_get(key(what, j))) absent += (absent.empty() ? "" : ", ") + std::to_string(j);
      }
      fail<TimeoutError>("[gloo] rank ", rank, " of ", size, " waited at ", store.str(), " for rank ", absent,
                         ", which did not come before the deadline; look at the output of that rank");
    }
  }
  return all;
}

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
  // If no address is known, the default route decides: 192.0.2.1 is an address reserved for documentation.
  return address.empty() ? address_towards("192.0.2.1") : address;
}

/// Listens on one address only, because Gloo does not authenticate connections.
std::shared_ptr<gloo::transport::Device> open_device(Store& store, int rank, int size, bool one_host,
                                                     Deadline deadline) {
  gloo::transport::tcp::attr attr;
  const std::string address = one_host ? "127.0.0.1" : own_address(store, rank, size, deadline);
  const char* variable = "TAPESTRY_INTERFACE";
  const char* interface = std::getenv(variable);
  if (!interface || !*interface) interface = std::getenv(variable = "GLOO_SOCKET_IFNAME");
  if (interface && *interface) {
    attr.iface = interface;
    const std::string names = interface_names();
    check<DistributedError>((", " + names + ", ").find(", " + attr.iface + ", ") != std::string::npos,
                            "[gloo] ", variable, " is ", attr.iface, ", but this host has ",
                            names.empty() ? "no interface with an address" : names,
                            "; set it to one of these interfaces, or unset it");
  } else {
    attr.hostname = address;
    check<DistributedError>(!address.empty(),
                            "[gloo] no network interface reaches the other hosts; set "
                            "TAPESTRY_INTERFACE to the one that the ranks share, one of: ",
                            interface_names());
  }
  const BlockSignals in_its_thread;
  const SchedSliceGuard of_its_thread;
  return gloo::transport::tcp::CreateDevice(attr);
}

}  // namespace

GlooTransfer::GlooTransfer(GlooOperation& operation, bool sends, void* data, std::size_t bytes, int peer,
                           std::uint64_t slot)
    : operation_(operation),
      sends_(sends),
      peer_(peer),
      slot_(slot),
      buffer_(operation.transport_.context_->createUnboundBuffer(data, bytes)) {}
GlooTransfer::~GlooTransfer() = default;

void GlooTransfer::post(std::size_t offset, std::size_t bytes) {
  try {
    if (sends_) buffer_->send(peer_, slot_, offset, bytes);
    else buffer_->recv(peer_, slot_, offset, bytes);
  } catch (const std::exception& e) {
    operation_.transport_.fail_for(peer_, false, e.what());
  }
  ++pending_;
}

void GlooTransfer::post_all() { post(0, buffer_->size); }

void GlooTransfer::wait() {
  if (complete_ > 0) --complete_;
  else operation_.wait(*this);
  --pending_;
}

// Returns false if it was woken without a completed piece. Throws after the timeout, when Gloo has closed all
// connections.
bool GlooTransfer::completes(Milliseconds timeout) {
  return sends_ ? buffer_->waitSend(timeout) : buffer_->waitRecv(timeout);
}

void GlooTransfer::wake() {
  if (sends_) buffer_->abortWaitSend();
  else buffer_->abortWaitRecv();
}

GlooOperation::GlooOperation(GlooTransport& transport, Deadline deadline)
    : transport_(transport), deadline_(deadline) {
  const std::lock_guard lock(transport_.mutex_);
  if (transport_.failed_) fail<DistributedError>(transport_.why_);
  transport_.operations_.insert(this);
}

GlooOperation::~GlooOperation() {
  {
    const std::lock_guard lock(transport_.mutex_);
    transport_.operations_.erase(this);
  }
  // An exception left the operation early. Peers must not write to its buffers or wait for it.
  if (std::any_of(transfers_.begin(), transfers_.end(), [](const auto& t) { return t.pending_ > 0; }))
    transport_.abort("[gloo] an operation ended early because of an exception");
}

void GlooOperation::wait_all() {
  for (GlooTransfer& transfer : transfers_) {
    while (transfer.pending_ > 0) transfer.wait();
  }
}

void GlooOperation::wait(GlooTransfer& transfer) {
  bool done = false;
  while (!done) {
    std::vector<GlooTransfer*> lost;
    {
      const std::lock_guard lock(transport_.mutex_);
      if (transport_.failed_) fail<DistributedError>(transport_.why_);
      for (GlooTransfer& other : transfers_) {
        if (other.pending_ > other.complete_ && transport_.lost_[static_cast<std::size_t>(other.peer_)])
          lost.push_back(&other);
      }
      waiting_ = &transfer;
    }
    const GlooTransfer* at = &transfer;
    std::string cause;
    try {
      // The lost peer may have sent everything before it left. If it has not, the operation fails without
      // waiting for other peers.
      for (GlooTransfer* other : lost) {
        at = other;
        while (other->pending_ > other->complete_) other->complete_ += other->completes(Milliseconds(0));
      }
      at = &transfer;
      done = transfer.complete_ > 0 || transfer.completes(left_until(deadline_));
    } catch (const std::exception& e) {
      cause = e.what();
    }
    {
      const std::lock_guard lock(transport_.mutex_);
      waiting_ = nullptr;
    }
    if (!cause.empty()) transport_.fail_for(at->peer_, at == &transfer && Clock::now() >= deadline_, cause);
    if (transfer.complete_ > 0) --transfer.complete_;
  }
}

GlooTransport::GlooTransport(Store& store, int rank, int size, Deadline deadline, const GlooTransport* like)
    : rank_(rank), size_(size), lost_(static_cast<std::size_t>(size)) {
  if (size == 1) return;
  const NoSigpipe guard;
  try {
    meet(store, deadline);
    device_ = like ? like->device_ : open_device(store, rank, size, one_host_, deadline);
    connect(store, deadline);
  } catch (const Error&) {
    throw;
  } catch (const std::exception& e) {  // of Gloo
    fail<DistributedError>("[gloo] rank ", rank, " of ", size,
                           " could not connect to the other ranks: ", e.what(),
                           "; set TAPESTRY_INTERFACE to the network interface that all ranks share");
  }
  const BlockSignals in_its_thread;
  watcher_ = std::thread([this] { watch_peers(); });
}

GlooTransport::~GlooTransport() {
  {
    const std::lock_guard lock(mutex_);
    closing_ = true;
    if (sentinel_) sentinel_->abortWaitRecv();
  }
  if (watcher_.joinable()) watcher_.join();
}

void GlooTransport::meet(Store& store, Deadline deadline) {
  const std::string here = host_identity();
  const std::vector<std::string> hosts = exchange(store, "host/", rank_, size_, here, deadline);
  one_host_ = std::all_of(hosts.begin(), hosts.end(), [&](const std::string& host) { return host == here; });
}

void GlooTransport::connect(Store& store, Deadline deadline) {
  context_ = device_->createContext(rank_, size_);
  // Gloo waits five times this long for a connection.
  context_->setTimeout(std::max(left_until(deadline) / 5, Milliseconds(1)));
  std::vector<std::string> addresses(static_cast<std::size_t>(size_));
  std::size_t length = 0;
  for (int i = 0; i < size_; ++i) {
    if (i == rank_) continue;
    const std::vector<char> bytes = context_->createPair(i)->address().bytes();
    addresses[static_cast<std::size_t>(i)].assign(bytes.begin(), bytes.end());
    length = bytes.size();
  }
  std::string all;
  for (std::string& address : addresses) {
    address.resize(length);
    all += address;
  }
  const std::vector<std::string> theirs = exchange(store, "addresses/", rank_, size_, all, deadline);
  for (int i = 0; i < size_; ++i) {
    if (i == rank_) continue;
    const std::string& given = theirs[static_cast<std::size_t>(i)];
    check<DistributedError>(given.size() == all.size(), "[gloo] rank ", i, " published ", given.size(),
                            " bytes of addresses, expected ", all.size(),
                            "; run the same program on the same kind of machine on all ranks");
    const auto mine = given.begin() + static_cast<std::ptrdiff_t>(length) * rank_;
    context_->getPair(i)->connect(std::vector<char>(mine, mine + static_cast<std::ptrdiff_t>(length)));
  }
  // A rank may close its connections at any time from now on, so all ranks must have theirs first: Gloo
  // reports a connection that closes while others still connect as a failure.
  exchange(store, "connected/", rank_, size_, "yes", deadline);
}

// Gloo reports a lost connection to all waiting operations, except to the one whose message is being
// transferred, which would sleep until the deadline. So the watcher posts a receive that never completes to
// every peer. When a peer exits, this receive fails and wakes the watcher, which wakes all operations.
// Operations that need nothing from that peer go on: a rank that has finished may leave while others are
// still busy.
void GlooTransport::watch_peers() {
  constexpr std::chrono::hours kForever{24 * 365};
  char never = 0;
  for (;;) {
    gloo::transport::UnboundBuffer* sentinel = nullptr;
    {
      const std::lock_guard lock(mutex_);
      if (closing_) break;
      sentinel_ = context_->createUnboundBuffer(&never, 1);
      sentinel = sentinel_.get();
    }
    bool watching = false;
    for (int i = 0; i < size_; ++i) {
      if (i == rank_ || lost_[static_cast<std::size_t>(i)]) continue;  // only this thread writes it
      try {
        sentinel->recv(i, kSentinelSlot, 0, 1);
        watching = true;
      } catch (const std::exception&) {
        lose(i);
      }
    }
    if (!watching) break;
    try {
      sentinel->waitRecv(kForever);
    } catch (const std::exception&) {  // a peer is lost; the next receive from it fails at once
    }
  }
  const std::lock_guard lock(mutex_);
  sentinel_.reset();
}

void GlooTransport::lose(int peer) noexcept {
  const std::lock_guard lock(mutex_);
  lost_[static_cast<std::size_t>(peer)] = true;
  for (GlooOperation* operation : operations_) {
    if (operation->waiting_) operation->waiting_->wake();
  }
}

bool GlooTransport::gone(int peer) {
  const std::lock_guard lock(mutex_);
  return failed_ || lost_[static_cast<std::size_t>(peer)];
}

void GlooTransport::fail_for(int peer, bool time_is_up, const std::string& cause) {
  {
    const std::lock_guard lock(mutex_);
    if (failed_) fail<DistributedError>(why_);
  }
  const std::string us = "[gloo] rank " + std::to_string(rank_) + " of " + std::to_string(size_);
  const std::string them = "rank " + std::to_string(peer);
  if (time_is_up) {
    const std::string why = us + " waited for " + them + " until the deadline; " + them +
                            " is late, stopped, or in another collective";
    abort(why);
    throw TimeoutError(why);
  }
  // Gloo's messages have the form "[file:line] text"; only the text is kept. A "Timed out" comes from our own
  // wait and explains nothing.
  const auto text = cause.find("] ");
  const bool tells = text != std::string::npos && cause.find("Timed out", text) == std::string::npos;
  const std::string why = us + " lost its connection to " + them +
                          (tells ? " (" + cause.substr(text + 2) + ")" : "") +
                          ", which died or failed; look at the output of that rank";
  abort(why);
  throw DistributedError(why);
}

void GlooTransport::abort(const std::string& why) noexcept {
  {
    const std::lock_guard lock(mutex_);
    if (failed_) return;
    failed_ = true;
    why_ = why;
    for (GlooOperation* operation : operations_) {
      if (operation->waiting_) operation->waiting_->wake();
    }
  }
  for (int i = 0; context_ && i < size_; ++i) {
    if (i != rank_) context_->getPair(i)->close();
  }
}

}  // namespace tapestry::distributed
#endif
