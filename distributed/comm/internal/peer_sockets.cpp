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

#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/un.h>
#include <unistd.h>

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

namespace tapestry::distributed {
namespace {

constexpr std::size_t kKey = 32, kProof = 32, kNumber = 4, kHello = kNumber + kProof;
constexpr Milliseconds kHandshake{5'000};  // time for an accepted connection to prove that it is a rank
constexpr Milliseconds kPause{20};         // before the next attempt to connect
constexpr std::string_view kAcknowledgement = "k";
constexpr std::size_t kMostUnprovenPeers =
    256;  // accepted connections without a proof; the oldest one is closed

std::string proof(std::string_view key, const char* word, int connecting_rank) {
  return hmac_sha256(key, concat({word, " ", connecting_rank}));
}

std::string number(int rank) {
  std::string bytes;
  for (unsigned shift = 0; shift < 32; shift += 8)
    bytes += static_cast<char>(static_cast<unsigned>(rank) >> shift & 255);
  return bytes;
}

int number_in(std::string_view bytes) {
  unsigned rank = 0;
  for (unsigned i = 0; i < kNumber; ++i)
    rank |= static_cast<unsigned>(static_cast<unsigned char>(bytes[i])) << 8 * i;
  return static_cast<int>(rank);
}

/// Appends what has arrived to `bytes`, until it has `size` bytes. Returns 0, or the errno of the failure;
/// ECONNRESET if the other side has closed the connection.
int receive(int fd, std::string& bytes, std::size_t size) {
  char buffer[64];
  while (bytes.size() < size) {
    const ssize_t n = ::recv(fd, buffer, std::min(sizeof buffer, size - bytes.size()), MSG_DONTWAIT);
    if (n > 0) bytes.append(buffer, static_cast<std::size_t>(n));
    else if (n == 0) return ECONNRESET;
    else if (errno == EAGAIN) return 0;
    else if (errno != EINTR) return errno;
  }
  return 0;
}

/// Sends a short message on a new connection, whose buffer has room for it. Returns 0 or errno.
int send_all(int fd, std::string_view bytes) {
  const ssize_t n = ::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  if (n < 0) return errno;
  return n == static_cast<ssize_t>(bytes.size()) ? 0 : ENOBUFS;
}

/// Who is at the other end of an accepted connection.
std::string origin(int fd) {
  SocketAddress address{.length = sizeof(sockaddr_storage)};
  if (::getpeername(fd, address.get(), &address.length) != 0) return "a process that has closed it";
  if (address.storage.ss_family == AF_UNIX) {
    ucred who{};
    socklen_t size = sizeof who;
    if (::getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &size) != 0) return "a process of this host";
    return concat({"process ", who.pid, " of user ", who.uid});
  }
  char host[NI_MAXHOST], port[NI_MAXSERV];
  if (::getnameinfo(address.get(), address.length, host, sizeof host, port, sizeof port,
                    NI_NUMERICHOST | NI_NUMERICSERV) != 0)
    return "an unknown address";
  return concat({host, ":", port});
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
  /// An accepted connection that has not proved yet that it comes from a rank.
  struct Stranger {
    Fd socket;
    Deadline deadline;
    std::string from;
    std::string hello;
  };
  /// An accepted connection of a rank that has proved itself, and has not acknowledged our proof yet.
  struct Answered {
    Fd socket;
    int rank = 0;
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
    listener_ = Fd(::socket(address.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    const bool ok = listener_.open() && ::bind(listener_.get(), address.get(), address.length) == 0 &&
                    ::listen(listener_.get(), SOMAXCONN) == 0;
    address.length = sizeof address.storage;
    if (!ok || ::getsockname(listener_.get(), address.get(), &address.length) != 0)
      fail_here("cannot listen for the other ranks");
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
    peer.socket = Fd(::socket(family_, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (!peer.socket.open()) fail_here("cannot open a socket");
    if (::connect(peer.socket.get(), peer.address.get(), peer.address.length) != 0 && errno != EINPROGRESS)
      retry(peer, errno);  // such as EAGAIN: the backlog of a Unix socket is full
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
      int error = 0;
      socklen_t size = sizeof error;
      if (::getsockopt(peer.socket.get(), SOL_SOCKET, SO_ERROR, &error, &size) != 0) error = errno;
      if (error == 0) error = send_all(peer.socket.get(), number(rank_) + proof(peer.key, "connect", rank_));
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
      const bool no_room = errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM;
      if (no_room && strangers_.empty()) fail_here("cannot accept a connection");
      if (no_room) refuse(strangers_.begin());
      return;
    }
    if (strangers_.size() >= kMostUnprovenPeers) refuse(strangers_.begin());
    std::string from = origin(socket.get());
    strangers_.push_back({std::move(socket), deadline_after(kHandshake), std::move(from), ""});
  }

  /// Returns the next stranger.
  std::list<Stranger>::iterator advance(std::list<Stranger>::iterator stranger) {
    const int error = receive(stranger->socket.get(), stranger->hello, kHello);
    if (error != 0 || (stranger->hello.size() < kHello && Clock::now() >= stranger->deadline))
      return refuse(stranger);
    if (stranger->hello.size() < kHello) return std::next(stranger);
    const int peer = number_in(stranger->hello);
    const bool rank = peer > rank_ && peer < size_ &&
                      equal_in_constant_time(std::string_view(stranger->hello).substr(kNumber),
                                             proof(own_key_, "connect", peer));
    if (!rank) return refuse(stranger);
    if (send_all(stranger->socket.get(), proof(own_key_, "accept", peer)) == 0)
      answered_.push_back({std::move(stranger->socket), peer});
    return strangers_.erase(stranger);
  }

  /// Returns the next one. A rank whose connection broke connects again.
  std::list<Answered>::iterator advance(std::list<Answered>::iterator peer) {
    std::string bytes;
    const int error = receive(peer->socket.get(), bytes, kAcknowledgement.size());
    if (error == 0 && bytes.empty()) return std::next(peer);
    if (error == 0) keep(peer->rank, std::move(peer->socket));
    return answered_.erase(peer);
  }

  std::list<Stranger>::iterator refuse(std::list<Stranger>::iterator stranger) {
    ++sockets_.refused;
    sockets_.refused_of = stranger->from;
    return strangers_.erase(stranger);
  }

  /// If a rank has connected again, the newer socket counts.
  void keep(int peer, Fd socket) {
    const int on = 1;
    if (family_ != AF_UNIX) ::setsockopt(socket.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    Fd& place = sockets_.to[static_cast<std::size_t>(peer)];
    missing_ -= !place.open();
    place = std::move(socket);
  }

  void wait() {
    std::vector<pollfd> fds{{listener_.get(), POLLIN, 0}};
    for (const Stranger& stranger : strangers_) fds.push_back({stranger.socket.get(), POLLIN, 0});
    const std::size_t num_answered = answered_.size();
    for (const Answered& peer : answered_) fds.push_back({peer.socket.get(), POLLIN, 0});
    for (const Outgoing& peer : outgoing_)
      fds.push_back({peer.socket.get(), static_cast<short>(peer.greeted ? POLLIN : POLLOUT), 0});
    const Milliseconds longest = std::min(left_until(deadline_), kPause);
    ::poll(fds.data(), fds.size(), static_cast<int>(longest.count()));
    std::size_t i = 1;
    for (auto stranger = strangers_.begin(); stranger != strangers_.end(); ++i)
      stranger =
          fds[i].revents != 0 || Clock::now() >= stranger->deadline ? advance(stranger) : std::next(stranger);
    auto answered = answered_.begin();  // advance(stranger) may have added some at the end
    for (std::size_t k = 0; k < num_answered; ++k, ++i)
      answered = fds[i].revents != 0 ? advance(answered) : std::next(answered);
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

  [[noreturn]] void fail_here(const char* what) const {
    const int error = errno;
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
  std::list<Stranger> strangers_;  // oldest first
  std::list<Answered> answered_;
  std::vector<Outgoing> outgoing_;
  PeerSockets sockets_;
};

}  // namespace

PeerSockets connect_peers(Store& store, int rank, int size, const std::optional<SocketAddress>& here,
                          Deadline deadline) {
  return Connector(store, rank, size, here, deadline).run();
}

}  // namespace tapestry::distributed
