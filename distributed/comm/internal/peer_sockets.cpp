// Every rank listens on one socket. It connects to all lower ranks and accepts connections of all higher
// ones.
//
//   connecting rank: its number (4 bytes, little-endian), proof("connect")
//   listening rank:  proof("accept")
//   connecting rank: one byte, which acknowledges the proof
//
// Without the acknowledgement, the listening rank could close its listener while the connection breaks, and
// the connecting rank could not connect again. A proof is an HMAC of the word and the connecting rank's
// number, with the listening rank's key. The messages have fixed sizes and each side reads no further, so
// later bytes belong to the user of the socket.
#include "tapestry/distributed/comm/internal/peer_sockets.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <list>
#include <string_view>

#include "tapestry/core/error.h"
#include "tapestry/distributed/comm/internal/deadline.h"
#include "tapestry/distributed/comm/internal/sha256.h"
#include "tapestry/distributed/comm/internal/tcp_wire.h"

namespace tapestry::distributed {
namespace {

constexpr std::size_t kKey = 32, kProof = 32, kNumber = wire::kSize, kHello = kNumber + kProof;
constexpr Milliseconds kHandshake{5'000};  // time for an accepted connection to prove that it is a rank
constexpr Milliseconds kPause{20};         // before the next attempt to connect
constexpr std::string_view kAcknowledgement = "k";
constexpr std::size_t kMostUnprovenPeers =
    256;  // accepted connections without a proof; the oldest one is closed

std::string proof(std::string_view key, const char* word, int connecting_rank) {
  return hmac_sha256(key, concat({word, " ", connecting_rank}));
}

/// Sends a short message on a new connection, whose buffer has room for it. Returns 0 or errno.
int send_all(int fd, std::string_view bytes) {
  const int error = send_some(fd, bytes);
  return error == 0 && !bytes.empty() ? ENOBUFS : error;
}

/// Who is at the other end of an accepted connection.
std::string origin(int fd) {
  const SocketAddress address = address_of(fd, ::getpeername);
  if (address.length == 0) return "a process that has closed it";
  if (address.storage.ss_family == AF_UNIX) {
    ucred who{};
    socklen_t size = sizeof who;
    if (::getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &size) != 0) return "a process of this host";
    return concat({"process ", who.pid, " of user ", who.uid});
  }
  return concat({address.host(), ":", address.port()});
}

class Connector {
 public:
  Connector(Store& store, int rank, int size, const std::optional<SocketAddress>& here, Deadline deadline)
      : store_(store), rank_(rank), size_(size), deadline_(deadline) {
    sockets_.to.resize(static_cast<std::size_t>(size));
    listen(here);
  }

  PeerSockets run() {
    read_addresses();
    while (missing_ > 0) {
      check_deadline();
      const Deadline now = Clock::now();
      for (Outgoing& peer : outgoing_)
        if (!peer.done && !peer.socket.open() && now >= peer.next) connect(peer);
      wait();
    }
    return std::move(sockets_);
  }

 private:
  /// An accepted connection.
  struct Accepted {
    Fd socket;
    Deadline deadline;
    std::string from, bytes;
    int rank = -1;  // after it has proved that it comes from that rank, which then acknowledges our proof
  };
  /// A connection to a lower rank.
  struct Outgoing {
    int rank = 0;
    std::string key;
    SocketAddress address;
    Fd socket;
    Deadline next{};  // time of the next attempt
    bool greeted = false, done = false;
    std::string answer;
    int error = 0;  // errno of the last attempt
  };

  void listen(const std::optional<SocketAddress>& here) {
    SocketAddress address;
    // If the length covers the family only, the kernel chooses an unused abstract address: see unix(7).
    address.storage.ss_family = AF_UNIX;
    address.length = sizeof(sa_family_t);
    if (here) address = *here;
    if (const int error = listen_at(address, listener_))
      fail_here("cannot listen for the other ranks", error);
    own_key_ = random_bytes(kKey);
    store_.set(concat({"socket/", rank_}),
               own_key_ + std::string(reinterpret_cast<const char*>(&address.storage), address.length));
    family_ = address.storage.ss_family;
  }

  void read_addresses() {
    for (int peer = 0; peer < rank_; ++peer) {
      const std::string text = address_of(peer);
      Outgoing& out = outgoing_.emplace_back();
      const std::size_t length = text.size() - std::min(text.size(), kKey);
      const bool fits = length > sizeof(sa_family_t) && length <= sizeof out.address.storage;
      if (fits) std::memcpy(&out.address.storage, text.data() + kKey, length);
      check<DistributedError>(fits && out.address.storage.ss_family == family_, "[gloo] rank ", peer,
                              " published another kind of address (", length, " bytes) than rank ", rank_,
                              "; run the same program on the same kind of machine and network on all ranks");
      out.rank = peer;
      out.key = text.substr(0, kKey);
      out.address.length = static_cast<socklen_t>(length);
    }
    missing_ = size_ - 1;
  }

  std::string address_of(int peer) {
    try {
      return store_.get(concat({"socket/", peer}), left_until(deadline_));
    } catch (const TimeoutError&) {
      fail<TimeoutError>("[gloo] rank ", rank_, " of ", size_, " waited at ", store_.str(),
                         " for the address of rank ", peer,
                         ", which did not come before the deadline; look at the output of that rank");
    }
  }

  void connect(Outgoing& peer) {
    peer.greeted = false;
    peer.answer.clear();
    peer.next = Clock::now() + kPause;
    const int error = start_connect(peer.address, peer.socket);
    if (!peer.socket.open()) fail_here("cannot open a socket", error);
    if (error != 0) retry(peer, error);  // such as EAGAIN: the backlog of a Unix socket is full
  }

  /// Ranks listen before they publish their addresses, so a connection is refused only if the rank has ended.
  void retry(Outgoing& peer, int error) {
    peer.error = error;
    peer.socket.close();
    if (error == EAGAIN || error == ECONNRESET || error == EPIPE || error == ETIMEDOUT) return;
    const bool ended = error == ECONNREFUSED;
    fail<DistributedError>("[gloo] rank ", rank_, " of ", size_, " cannot connect to rank ", peer.rank, ": ",
                           std::strerror(error),
                           ended ? "; that rank has ended or failed, look at its output"
                                 : "; set TAPESTRY_INTERFACE to the network interface that all ranks share");
  }

  void advance(Outgoing& peer) {
    if (!peer.greeted) {
      int error = connect_error(peer.socket.get());
      if (error == 0)
        error = send_all(peer.socket.get(), wire::size_bytes(static_cast<std::uint32_t>(rank_)) +
                                                proof(peer.key, "connect", rank_));
      if (error != 0) return retry(peer, error);
      peer.greeted = true;
      return;
    }
    if (const int error = receive(peer.socket.get(), peer.answer, kProof)) return retry(peer, error);
    if (peer.answer.size() < kProof) return;
    // Another program listens there now, because the rank has ended.
    if (!equal_in_constant_time(peer.answer, proof(peer.key, "accept", rank_)))
      return retry(peer, ECONNREFUSED);
    if (const int error = send_all(peer.socket.get(), kAcknowledgement)) return retry(peer, error);
    peer.done = true;
    keep(peer.rank, std::move(peer.socket));
  }

  void accept() {
    Fd socket(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!socket.open()) {
      const int error = errno;
      if (no_room(error) && strangers_.empty()) fail_here("cannot accept a connection", error);
      if (no_room(error)) refuse(strangers_.begin());
      return;
    }
    if (strangers_.size() >= kMostUnprovenPeers) refuse(strangers_.begin());
    std::string from = origin(socket.get());
    strangers_.push_back({std::move(socket), deadline_after(kHandshake), std::move(from), ""});
  }

  /// Returns the next connection of the same list.
  std::list<Accepted>::iterator advance(std::list<Accepted>::iterator peer) {
    const bool answered = peer->rank >= 0;
    const std::size_t size = answered ? kHello + kAcknowledgement.size() : kHello;
    const int error = receive(peer->socket.get(), peer->bytes, size);
    if (error == 0 && peer->bytes.size() < size && Clock::now() < peer->deadline) return std::next(peer);
    if (answered) {  // a rank whose connection broke connects again
      if (error == 0) keep(peer->rank, std::move(peer->socket));
      return answered_.erase(peer);
    }
    if (peer->bytes.size() < size) return refuse(peer);
    const int rank = static_cast<int>(wire::read_size(peer->bytes));
    if (rank <= rank_ || rank >= size_ ||
        !equal_in_constant_time(std::string_view(peer->bytes).substr(kNumber),
                                proof(own_key_, "connect", rank)))
      return refuse(peer);
    if (send_all(peer->socket.get(), proof(own_key_, "accept", rank)) == 0)
      answered_.push_back({std::move(peer->socket), Deadline::max(), "", std::move(peer->bytes), rank});
    return strangers_.erase(peer);
  }

  std::list<Accepted>::iterator refuse(std::list<Accepted>::iterator stranger) {
    ++sockets_.refused;
    sockets_.refused_of = stranger->from;
    return strangers_.erase(stranger);
  }

  /// If a rank has connected again, the newer socket counts.
  void keep(int peer, Fd socket) {
    if (family_ != AF_UNIX) set_option(socket.get(), IPPROTO_TCP, TCP_NODELAY, 1);
    Fd& place = sockets_.to[static_cast<std::size_t>(peer)];
    missing_ -= !place.open();
    place = std::move(socket);
  }

  void wait() {
    std::vector<pollfd> fds{{listener_.get(), POLLIN, 0}};
    for (const auto* list : {&answered_, &strangers_})
      for (const Accepted& peer : *list) fds.push_back({peer.socket.get(), POLLIN, 0});
    for (const Outgoing& peer : outgoing_)
      fds.push_back({peer.socket.get(), static_cast<short>(peer.greeted ? POLLIN : POLLOUT), 0});
    ::poll(fds.data(), fds.size(), poll_timeout(std::min(deadline_, Clock::now() + kPause)));
    std::size_t i = 1;
    for (auto* list : {&answered_, &strangers_})
      for (auto peer = list->begin(); peer != list->end(); ++i)
        peer = fds[i].revents != 0 || Clock::now() >= peer->deadline ? advance(peer) : std::next(peer);
    for (Outgoing& peer : outgoing_)
      if (fds[i++].revents != 0 && peer.socket.open()) advance(peer);
    if (fds[0].revents != 0) accept();
  }

  void check_deadline() const {
    if (Clock::now() < deadline_) return;
    std::string ranks;
    int error = 0;
    for (int peer = 0; peer < size_; ++peer) {
      if (peer == rank_ || sockets_.to[static_cast<std::size_t>(peer)].open()) continue;
      ranks += concat({ranks.empty() ? "" : ", ", peer});
      if (peer < rank_) error = outgoing_[static_cast<std::size_t>(peer)].error;
    }
    fail<TimeoutError>("[gloo] rank ", rank_, " of ", size_, " has no connection with rank ", ranks,
                       " at the deadline", error != 0 ? std::string(": ") + std::strerror(error) : "",
                       sockets_.refused > 0
                           ? concat({"; it refused ", sockets_.refused,
                                     " connection(s) that did not prove within ", kHandshake.count() / 1000,
                                     " s that they belong to this job, the last from ", sockets_.refused_of})
                           : "",
                       family_ == AF_UNIX
                           ? "; look at the output of that rank"
                           : "; look at the output of that rank, and set TAPESTRY_INTERFACE to the network "
                             "interface that all ranks share");
  }

  [[noreturn]] void fail_here(const char* what, int error) const {
    const bool files = error == EMFILE || error == ENFILE;
    fail<DistributedError>("[gloo] rank ", rank_, " of ", size_, " ", what, ": ", std::strerror(error),
                           files ? "; raise the limit of open files (ulimit -n)"
                                 : "; set TAPESTRY_INTERFACE to the network interface that all ranks share");
  }

  Store& store_;
  const int rank_, size_;
  const Deadline deadline_;
  int family_ = AF_UNSPEC;
  int missing_ = 0;  // ranks without a connection
  Fd listener_;
  std::string own_key_;
  std::list<Accepted> answered_, strangers_;  // with and without a rank; oldest first
  std::vector<Outgoing> outgoing_;
  PeerSockets sockets_;
};

}  // namespace

PeerSockets connect_peers(Store& store, int rank, int size, const std::optional<SocketAddress>& here,
                          Deadline deadline) {
  return Connector(store, rank, size, here, deadline).run();
}

}  // namespace tapestry::distributed
