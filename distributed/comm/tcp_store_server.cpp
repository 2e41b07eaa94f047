// The server of the TCP store. Everything below runs on the server's own thread, except the constructor,
// drain() and the destructor. A connection is a stranger until it has proved that it holds the secret. It is
// then a client, which sends one request at a time. Data is buffered only as it arrives, so that a connection
// that merely announces a large size uses no memory. A connection that breaks the protocol or misses a
// deadline is dropped.
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <condition_variable>
#include <cstring>
#include <iterator>
#include <list>
#include <mutex>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "tapestry/core/internal/limits.h"
#include "tapestry/distributed/comm/internal/block_signals.h"
#include "tapestry/distributed/comm/internal/deadline.h"
#include "tapestry/distributed/comm/internal/key_table.h"
#include "tapestry/distributed/comm/internal/machine.h"
#include "tapestry/distributed/comm/internal/port_holder.h"
#include "tapestry/distributed/comm/internal/sha256.h"
#include "tapestry/distributed/comm/internal/sockets.h"
#include "tapestry/distributed/comm/internal/tcp_wire.h"

namespace tapestry::distributed {
namespace {

using wire::Op;
using wire::Response;
using wire::Status;

constexpr Milliseconds kHandshakeTimeout{5'000};
constexpr Milliseconds kAcceptPause{50};  // after the last file descriptor was used up
constexpr Deadline kNever = Deadline::max();
constexpr std::size_t kMostStrangers = 128, kMostClients = 4096;
constexpr std::size_t kMostKept = std::size_t{256} << 20;      // keys and values
constexpr std::size_t kMostUnderway = std::size_t{512} << 20;  // requests and responses in transit
constexpr std::size_t kReadAtOnce = 64 << 10;

class ClientConnection;

/// The state that all connections share.
struct Shared {
  const Fd events{::epoll_create1(EPOLL_CLOEXEC)};
  std::string secret;
  Milliseconds request_timeout, handshake_timeout;
  KeyTable table;
  std::size_t underway = 0;
  Deadline next = kNever;  // no deadline of a connection is earlier
  std::unordered_map<std::string, std::vector<ClientConnection*>> waiting;  // by key
  std::list<ClientConnection> strangers, clients;                           // oldest first
  std::list<ClientConnection> dropped;  // until no event or caller refers to them

  /// Encodes a response once, for all clients that wait for the same key.
  std::shared_ptr<const std::string> pack(const Response& response) {
    auto text = std::make_unique<std::string>(wire::encode(response));
    underway += text->size();
    return {text.release(), [this](const std::string* t) { underway -= t->size(), delete t; }};
  }
  void put(const std::string& key, std::string_view value);

  /// Changes by epoll_ctl(`how`) what epoll_wait() reports about a socket. Returns 0 or errno.
  int watch(int how, const Fd& socket, std::uint32_t what, ClientConnection* connection) const {
    epoll_event event{.events = what, .data = {.ptr = connection}};
    return ::epoll_ctl(events.get(), how, socket.get(), &event) == 0 ? 0 : errno;
  }
};

class ClientConnection {
 public:
  ClientConnection(Shared& shared, Fd socket) : shared_(shared), socket_(std::move(socket)) {}

  /// Runs one step of this connection. An exception, such as std::bad_alloc, drops this connection and no
  /// other.
  template <class F>
  void step(F&& f) {
    if (dropped_) return;
    try {
      f();
    } catch (const std::exception&) {
      drop();
    }
  }

  /// `self` is the place of this connection in the list of strangers.
  void greet(std::list<ClientConnection>::iterator self) {
    self_ = self;
    set_option(socket_.get(), IPPROTO_TCP, TCP_NODELAY, 1);
    set_option(socket_.get(), SOL_SOCKET, SO_KEEPALIVE, 1);  // notices a host that vanished
    if (shared_.watch(EPOLL_CTL_ADD, socket_, EPOLLIN, this) != 0) return drop();
    alarm(shared_.handshake_timeout);
    nonce_ = random_bytes(wire::kNonce);
    send(std::make_shared<const std::string>(std::string(wire::kGreeting) + nonce_));
  }

  /// Handles what epoll_wait() reports. Also waits for data while a request is being answered, in order to
  /// notice when the client disconnects.
  void on_event(std::uint32_t what) {
    if (what & EPOLLOUT && !unsent_.empty()) flush();
    if (!dropped_ && what & ~std::uint32_t{EPOLLOUT}) take();
  }

  Deadline deadline() const { return deadline_; }
  void on_deadline() {
    if (!waits_) return drop();
    stop_waiting();
    answer(shared_.pack({Status::timeout, ""}));
  }

  /// Closes the connection. The object lives until all events of the last epoll_wait() are handled, because
  /// one of them may refer to it.
  void drop() {
    if (std::exchange(dropped_, true)) return;
    // If a forked process holds the socket too, close() alone does not end its events.
    shared_.watch(EPOLL_CTL_DEL, socket_, 0, nullptr);
    socket_.close();
    deadline_ = kNever;
    stop_waiting();
    take_inbox();
    outbox_.reset();
    for (const std::string& key : held_) shared_.table.erase(key);
    shared_.dropped.splice(shared_.dropped.end(), client_ ? shared_.clients : shared_.strangers, self_);
  }

  void answer(std::shared_ptr<const std::string> response) {
    if (shared_.underway > kMostUnderway) return drop();
    waits_ = false;
    alarm(shared_.request_timeout);  // the client must receive the response within this time
    send(std::move(response));
  }

 private:
  void alarm(Milliseconds after) {
    deadline_ = deadline_after(after);
    shared_.next = std::min(shared_.next, deadline_);
  }

  void take() {
    const std::size_t before = inbox_.size();
    const int error = receive(socket_.get(), inbox_, before + kReadAtOnce);
    shared_.underway += inbox_.size() - before;
    if (error == 0 && inbox_.size() == before) return;
    const bool busy = waits_ || !unsent_.empty();  // one request at a time
    if (error != 0 || busy || shared_.underway > kMostUnderway) return drop();
    if (client_ && before == 0) alarm(shared_.request_timeout);
    client_ ? take_request() : authenticate();
  }

  std::string take_inbox() {
    shared_.underway -= inbox_.size();
    return std::exchange(inbox_, std::string());
  }

  void authenticate() {
    constexpr std::size_t kExpected = wire::kNonce + wire::kProof;
    if (inbox_.size() > kExpected) return drop();
    if (inbox_.size() < kExpected) return;
    const std::string message = take_inbox();
    const std::string_view nonce = std::string_view(message).substr(0, wire::kNonce);
    const auto prove = [&](wire::Side side) { return wire::proof(side, shared_.secret, nonce_, nonce); };
    if (!equal_in_constant_time(prove(wire::Side::client), std::string_view(message).substr(wire::kNonce))) {
      send(std::make_shared<const std::string>(1, wire::kRefused));
      return drop();
    }
    if (shared_.clients.size() >= kMostClients) return drop();
    client_ = true;
    shared_.clients.splice(shared_.clients.end(), shared_.strangers, self_);
    send(std::make_shared<const std::string>(wire::kWelcome + prove(wire::Side::server)));
  }

  void take_request() {
    if (inbox_.size() < wire::kSize) return;
    const std::size_t size = wire::read_size(inbox_);
    if (size > wire::kMaxRequest || inbox_.size() > wire::kSize + size) return drop();
    if (inbox_.size() < wire::kSize + size) return;
    const std::optional<wire::Request> request =
        wire::decode_request(std::string_view(inbox_).substr(wire::kSize));
    take_inbox();
    if (!request) return drop();
    const std::optional<Response> response = serve(*request);
    if (response) answer(shared_.pack(*response));
  }

  /// nullopt if the request waits for its key.
  std::optional<Response> serve(const wire::Request& request) {
    KeyTable& table = shared_.table;
    const std::string& key = request.key;
    const bool sets = request.op == Op::set || request.op == Op::add || request.op == Op::compare_set ||
                      request.op == Op::hold;
    if (sets && table.bytes() + key.size() + request.value.size() > kMostKept)
      return Response{Status::full, ""};
    switch (request.op) {
      case Op::set:
        shared_.put(key, request.value);
        return Response{};
      case Op::get:
        if (table.find(key)) break;
        if (request.number <= 0) return Response{Status::timeout, ""};
        wait_for(key, Milliseconds(request.number));
        return {};
      case Op::try_get:
        break;
      case Op::add:
        try {
          shared_.put(key, std::to_string(table.sum(key, request.number)));
        } catch (const ValueError& error) {
          return Response{Status::refused, error.what()};
        }
        break;
      case Op::compare_set:
        if (table.holds(key, request.expected)) shared_.put(key, request.value);
        break;
      case Op::hold:
        if (table.find(key)) return Response{Status::absent, ""};
        notice_silence();
        held_.push_back(key);
        shared_.put(key, request.value);
        break;
      case Op::erase:
        return Response{table.erase(key) ? Status::ok : Status::absent, ""};
    }
    const std::string* const value = table.find(key);
    return value ? Response{Status::ok, *value} : Response{Status::absent, ""};
  }

  /// Ends this connection if the client's host does not answer for 11 s, although no data is due.
  void notice_silence() const {
    constexpr std::pair<int, int> kOptions[] = {{TCP_KEEPIDLE, 5}, {TCP_KEEPINTVL, 2}, {TCP_KEEPCNT, 3}};
    for (const auto& [option, value] : kOptions) set_option(socket_.get(), IPPROTO_TCP, option, value);
  }

  void wait_for(const std::string& key, Milliseconds timeout) {
    awaited_ = key;
    waits_ = true;
    shared_.waiting[key].push_back(this);
    alarm(timeout);
  }
  void stop_waiting() {
    if (!std::exchange(waits_, false)) return;
    const auto found = shared_.waiting.find(awaited_);
    if (found == shared_.waiting.end()) return;
    std::erase(found->second, this);
    if (found->second.empty()) shared_.waiting.erase(found);
  }

  void send(std::shared_ptr<const std::string> text) {
    outbox_ = std::move(text);
    unsent_ = *outbox_;
    flush();
  }
  void flush() {
    if (send_some(socket_.get(), unsent_) != 0) return drop();
    const std::uint32_t wanted = unsent_.empty() ? EPOLLIN : EPOLLIN | EPOLLOUT;
    if (std::exchange(watched_, wanted) != wanted && shared_.watch(EPOLL_CTL_MOD, socket_, wanted, this) != 0)
      return drop();
    if (!unsent_.empty()) return;
    outbox_.reset();
    if (client_) deadline_ = kNever;  // the deadline of a stranger is that of the handshake
  }

  Shared& shared_;
  Fd socket_;
  std::list<ClientConnection>::iterator self_;
  Deadline deadline_ = kNever;  // of the handshake, the request, the wait for a key or the response
  std::string nonce_, inbox_, awaited_;
  std::shared_ptr<const std::string> outbox_;
  std::string_view unsent_;  // the end of outbox_
  std::uint32_t watched_ = EPOLLIN;
  std::vector<std::string> held_;  // keys that end with this connection
  bool client_ = false, waits_ = false, dropped_ = false;
};

void Shared::put(const std::string& key, std::string_view value) {
  table.set(key, value);
  const auto found = waiting.extract(key);
  if (found.empty()) return;
  const auto response = pack({Status::ok, std::string(value)});
  for (ClientConnection* const client : found.mapped()) client->step([&] { client->answer(response); });
}

class Server final : public StoreServer {
 public:
  Server(const std::string& host, int port, const TcpOptions& options) {
    check(port >= 0 && port <= 65535, "[store] port ", port,
          "; choose one from 1 to 65535, or 0 for a free one");
    if (!shared_.events.open() || !wake_.open())
      fail<DistributedError>("[store] cannot start the server: ", std::strerror(errno),
                             "; raise the limit of open files (ulimit -n)");
    shared_.secret = options.secret;
    shared_.request_timeout = options.request_timeout;
    shared_.handshake_timeout = std::min(kHandshakeTimeout, options.request_timeout);
    listen(host, port);
    for (const auto& [socket, events] : {std::pair(&wake_, EPOLLIN | EPOLLET), {&listener_, EPOLLIN}})
      if (const int error = shared_.watch(EPOLL_CTL_ADD, *socket, events, nullptr); error != 0)
        fail<DistributedError>("[store] cannot start the server: ", std::strerror(error),
                               "; free memory, or raise fs.epoll.max_user_watches");
    const BlockSignals in_its_thread;
    thread_ = detail::start_thread("store", [this] { run(); });
  }

  ~Server() override {
    ending_ = true;
    wake();
    thread_.join();
  }

  int port() const override { return address_.port(); }
  std::string address() const override { return address_.host(); }

  bool drain(Milliseconds timeout) override {
    closing_ = true;
    wake();
    std::unique_lock lock(mutex_);
    return left_.wait_until(lock, deadline_after(timeout), [this] { return drained_; });
  }

 private:
  void listen(const std::string& host, int port) {
    std::vector<SocketAddress> addresses;
    if (host.empty() && !shared_.secret.empty()) {  // all interfaces, for IPv4 and, if available, IPv6
      for (const char* const all : {"::", "0.0.0.0"}) addresses.push_back(addresses_of(all, port).at(0));
    } else {
      std::string why;
      addresses = addresses_of(host.empty() ? loopback_host() : host, port, &why);
      check<DistributedError>(!addresses.empty(), "[store] cannot find ", host, ": ", why,
                              "; use a name or an address of this machine");
      std::stable_partition(addresses.begin(), addresses.end(),
                            [](const SocketAddress& a) { return a.storage.ss_family == AF_INET; });
    }
    int error = 0;
    // A name such as localhost may have addresses that no interface of this host has.
    for (const SocketAddress& address : addresses) {
      check(!shared_.secret.empty() || is_loopback(address.host()),
            "[store] without a secret a store listens on loopback only, but ", host,
            " is not a loopback address; set TAPESTRY_SECRET to the same text on all hosts");
      address_ = address;
      error = listen_at(address_, listener_);
      if (error != EADDRNOTAVAIL && error != EAFNOSUPPORT) break;
    }
    const std::string place = concat({host.empty() ? "this host" : host, ", port ", port});
    if (error == EADDRINUSE) {
      const std::string holder = port_holder(port);
      fail<DistributedError>(
          "[store] cannot listen at ", place, ": taken by ",
          holder.empty() ? "a process of another user" : holder,
          "; end it, or choose another port (TAPESTRY_PORT, MASTER_PORT, --rdzv-endpoint)");
    }
    check<DistributedError>(error == 0, "[store] cannot listen at ", place, ": ", std::strerror(error),
                            error == EMFILE
                                ? "; raise the limit of open files (ulimit -n)"
                                : "; use an address of this machine and a port that this user may bind");
  }

  /// Ends the wait for events in the server's thread.
  void wake() const { static_cast<void>(::eventfd_write(wake_.get(), 1)); }

  void run() {
    epoll_event events[64];
    while (!ending_) {
      const int count =
          ::epoll_wait(shared_.events.get(), events, std::size(events), poll_timeout(shared_.next));
      for (int i = 0; i < count; ++i) {
        auto* const connection = static_cast<ClientConnection*>(events[i].data.ptr);
        if (connection) connection->step([&] { connection->on_event(events[i].events); });
        else accept();
      }
      if (Clock::now() >= shared_.next) check_deadlines();
      if (closing_) close();
      shared_.dropped.clear();
      const std::lock_guard lock(mutex_);
      drained_ = !listener_.open() && shared_.clients.empty();
      if (drained_) left_.notify_all();
    }
  }

  void check_deadlines() {
    const Deadline now = Clock::now();
    shared_.next = kNever;
    for (std::list<ClientConnection>* const list : {&shared_.strangers, &shared_.clients})
      for (auto next = list->begin(); next != list->end();) {
        ClientConnection& connection = *next++;  // the step may move it to another list
        if (connection.deadline() <= now) connection.step([&] { connection.on_deadline(); });
        else shared_.next = std::min(shared_.next, connection.deadline());
      }
    shared_.watch(EPOLL_CTL_MOD, listener_, EPOLLIN, nullptr);  // after a pause
  }

  void accept() try {
    Fd socket(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (socket.open()) {
      if (shared_.strangers.size() >= kMostStrangers) shared_.strangers.front().drop();
      ClientConnection& stranger = shared_.strangers.emplace_back(shared_, std::move(socket));
      stranger.step([&] { stranger.greet(std::prev(shared_.strangers.end())); });
    } else if (no_room(errno)) {
      if (!shared_.strangers.empty()) shared_.strangers.front().drop();
      shared_.watch(EPOLL_CTL_MOD, listener_, 0, nullptr);
      shared_.next = std::min(shared_.next, deadline_after(kAcceptPause));
    }
  } catch (const std::exception&) {  // out of memory for a new connection
  }

  void close() {
    if (!listener_.open()) return;
    shared_.watch(EPOLL_CTL_DEL, listener_, 0, nullptr);
    listener_.close();
    while (!shared_.strangers.empty()) shared_.strangers.front().drop();
  }

  const Fd wake_{::eventfd(0, EFD_CLOEXEC)};
  Shared shared_;
  Fd listener_;
  SocketAddress address_;
  std::atomic<bool> closing_ = false, ending_ = false;
  std::mutex mutex_;
  std::condition_variable left_;
  bool drained_ = false;
  std::thread thread_;
};

}  // namespace

std::unique_ptr<StoreServer> start_store_server(const std::string& host, int port,
                                                const TcpOptions& options) {
  return std::make_unique<Server>(host, port, options);
}

}  // namespace tapestry::distributed
