// The server of the TCP store. Everything below runs on the server's own thread, except the constructor,
// drain() and the destructor. A connection is a stranger until it has proved that it holds the secret. It is
// then a client, which sends one request at a time. Data is buffered only as it arrives, so that a connection
// that merely announces a large size uses no memory. A connection that breaks the protocol or misses a
// deadline is dropped.
#define ASIO_STANDALONE
#include <fcntl.h>
#include <netinet/tcp.h>

#include <algorithm>
#include <asio/executor_work_guard.hpp>
#include <asio/io_context.hpp>
#include <asio/ip/tcp.hpp>
#include <asio/ip/v6_only.hpp>
#include <asio/post.hpp>
#include <asio/steady_timer.hpp>
#include <asio/write.hpp>
#include <condition_variable>
#include <functional>
#include <list>
#include <mutex>
#include <system_error>
#include <thread>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "tapestry/core/internal/limits.h"
#include "tapestry/distributed/comm/internal/block_signals.h"
#include "tapestry/distributed/comm/internal/deadline.h"
#include "tapestry/distributed/comm/internal/key_table.h"
#include "tapestry/distributed/comm/internal/machine.h"
#include "tapestry/distributed/comm/internal/port_holder.h"
#include "tapestry/distributed/comm/internal/sha256.h"
#include "tapestry/distributed/comm/internal/tcp_wire.h"

namespace tapestry::distributed {
namespace {

using asio::ip::tcp;
using wire::Op;
using wire::Response;
using wire::Status;

constexpr Milliseconds kHandshakeTimeout{5'000};
constexpr std::size_t kMostStrangers = 128, kMostClients = 4096;
constexpr std::size_t kMostKept = std::size_t{256} << 20;  // keys and values
constexpr std::size_t kMostUnderway = std::size_t{512}
                                      << 20;  // requests being received and responses being sent
constexpr std::size_t kReadAtOnce = 64 << 10;
const asio::error_code kNotHere(EADDRNOTAVAIL, asio::system_category());

class ClientConnection;

/// The state that all connections share.
struct Shared {
  asio::io_context io;
  std::string secret;
  Milliseconds request_timeout, handshake_timeout;
  KeyTable table;
  std::size_t underway = 0;
  std::vector<char> scratch = std::vector<char>(kReadAtOnce);
  std::unordered_map<std::string, std::vector<std::shared_ptr<ClientConnection>>> waiting;  // by key
  std::unordered_set<std::shared_ptr<ClientConnection>> clients;
  std::list<std::shared_ptr<ClientConnection>> strangers;  // oldest first
  std::function<void()> changed;                           // called when a client was added or removed

  /// Encodes a response once, for all clients that wait for the same key.
  std::shared_ptr<const std::string> pack(const Response& response) {
    auto text = std::make_unique<std::string>(wire::encode(response));
    underway += text->size();
    return {text.release(), [this](const std::string* t) { underway -= t->size(), delete t; }};
  }
  void put(const std::string& key, std::string_view value);
};

class ClientConnection : public std::enable_shared_from_this<ClientConnection> {
 public:
  ClientConnection(Shared& shared, tcp::socket socket)
      : shared_(shared), socket_(std::move(socket)), timer_(shared.io) {}
  ~ClientConnection() { shared_.underway -= inbox_.size(); }

  void start() {
    step([this] { greet(); });
  }

  /// Closes the connection and removes it. Callbacks that are still pending do nothing.
  void drop() {
    if (std::exchange(dropped_, true)) return;
    const auto self = shared_from_this();
    asio::error_code ignored;
    socket_.close(ignored);
    timer_.cancel();
    stop_waiting();
    for (const std::string& key : held_) shared_.table.erase(key);
    std::erase(shared_.strangers, self);
    if (shared_.clients.erase(self) > 0) shared_.changed();
  }

  void answer(std::shared_ptr<const std::string> response) {
    if (dropped_) return;
    if (shared_.underway > kMostUnderway) return drop();
    waits_ = false;
    alarm(shared_.request_timeout,
          &ClientConnection::drop);  // the client must receive the response within this time
    send(std::move(response));
  }

 private:
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

  void greet() {
    socket_.non_blocking(true);
    socket_.set_option(tcp::no_delay(true));
    socket_.set_option(asio::socket_base::keep_alive(true));  // notices a host that vanished
    nonce_ = random_bytes(wire::kNonce);
    send(std::make_shared<const std::string>(std::string(wire::kGreeting) + nonce_));
    alarm(shared_.handshake_timeout, &ClientConnection::drop);
    read();
  }

  void alarm(Milliseconds after, void (ClientConnection::*then)()) {
    const int number = ++alarms_;  // the callback of an earlier timer may be queued already
    timer_.expires_at(deadline_after(after));
    timer_.async_wait([self = shared_from_this(), number, then](const asio::error_code&) {
      if (self->alarms_ == number) self->step([&] { (*self.*then)(); });
    });
  }
  void no_alarm() {
    ++alarms_;
    timer_.cancel();
  }

  // Always waits for data, also while a request is being answered, in order to notice when the client
  // disconnects.
  void read() {
    socket_.async_wait(tcp::socket::wait_read, [self = shared_from_this()](const asio::error_code& error) {
      self->step([&] { error ? self->drop() : self->take(); });
    });
  }

  void take() {
    asio::error_code error;
    const std::size_t count = socket_.read_some(asio::buffer(shared_.scratch), error);
    if (error == asio::error::would_block || error == asio::error::interrupted) return read();
    if (error || answering_) return drop();  // one request at a time
    if (shared_.underway + count > kMostUnderway) return drop();
    if (client_ && inbox_.empty()) alarm(shared_.request_timeout, &ClientConnection::drop);
    inbox_.append(shared_.scratch.data(), count);
    shared_.underway += count;
    client_ ? receive() : authenticate();
    if (!dropped_) read();
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
    answering_ = true;
    if (!equal_in_constant_time(prove(wire::Side::client), std::string_view(message).substr(wire::kNonce))) {
      hang_up_ = true;
      return send(std::make_shared<const std::string>(1, wire::kRefused));
    }
    if (shared_.clients.size() >= kMostClients) return drop();
    client_ = true;
    std::erase(shared_.strangers, shared_from_this());
    shared_.clients.insert(shared_from_this());
    shared_.changed();
    send(std::make_shared<const std::string>(wire::kWelcome + prove(wire::Side::server)));
  }

  void receive() {
    if (inbox_.size() < wire::kSize) return;
    const std::size_t size = wire::read_size(inbox_);
    if (size > wire::kMaxRequest || inbox_.size() > wire::kSize + size) return drop();
    if (inbox_.size() < wire::kSize + size) return;
    const std::optional<wire::Request> request =
        wire::decode_request(std::string_view(inbox_).substr(wire::kSize));
    take_inbox();
    if (!request) return drop();
    answering_ = true;
    no_alarm();
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
  void notice_silence() {
    constexpr std::pair<int, int> kOptions[] = {{TCP_KEEPIDLE, 5}, {TCP_KEEPINTVL, 2}, {TCP_KEEPCNT, 3}};
    for (const auto& [option, value] : kOptions)
      ::setsockopt(socket_.native_handle(), IPPROTO_TCP, option, &value, sizeof value);
  }

  void wait_for(const std::string& key, Milliseconds timeout) {
    awaited_ = key;
    waits_ = true;
    shared_.waiting[key].push_back(shared_from_this());
    alarm(timeout, &ClientConnection::give_up);
  }
  void give_up() {
    stop_waiting();
    answer(shared_.pack({Status::timeout, ""}));
  }
  void stop_waiting() {
    if (!std::exchange(waits_, false)) return;
    const auto found = shared_.waiting.find(awaited_);
    if (found == shared_.waiting.end()) return;
    std::erase(found->second, shared_from_this());
    if (found->second.empty()) shared_.waiting.erase(found);
  }

  void send(std::shared_ptr<const std::string> text) {
    const auto buffer = asio::buffer(*text);
    asio::async_write(
        socket_, buffer,
        [self = shared_from_this(), text = std::move(text)](const asio::error_code& error, std::size_t) {
          self->step([&] { error || self->hang_up_ ? self->drop() : self->sent(); });
        });
  }
  void sent() {
    if (!client_) return;  // the greeting was sent; the handshake timeout keeps running
    answering_ = false;
    if (inbox_.empty()) no_alarm();
  }

  Shared& shared_;
  tcp::socket socket_;
  asio::steady_timer timer_;
  int alarms_ = 0;
  std::string nonce_, inbox_, awaited_;
  std::vector<std::string> held_;  // keys that end with this connection
  bool client_ = false, answering_ = false, waits_ = false, hang_up_ = false, dropped_ = false;
};

void Shared::put(const std::string& key, std::string_view value) {
  table.set(key, value);
  const auto found = waiting.extract(key);
  if (found.empty()) return;
  const auto response = pack({Status::ok, std::string(value)});
  for (const auto& connection : found.mapped()) connection->answer(response);
}

class Server final : public StoreServer {
 public:
  Server(const std::string& host, int port, const TcpOptions& options) {
    check(port >= 0 && port <= 65535, "[store] port ", port,
          "; choose one from 1 to 65535, or 0 for a free one");
    shared_.secret = options.secret;
    shared_.request_timeout = options.request_timeout;
    shared_.handshake_timeout = std::min(kHandshakeTimeout, options.request_timeout);
    shared_.changed = [this] {
      const std::lock_guard lock(mutex_);
      clients_ = shared_.clients.size();
      left_.notify_all();
    };
    listen(host, static_cast<unsigned short>(port));
    accept();
    const BlockSignals in_its_thread;
    thread_ = detail::start_thread("store", [this] { run(); });
  }

  ~Server() override {
    asio::post(shared_.io, [this] {
      close();
      for (const auto& client : std::vector(shared_.clients.begin(), shared_.clients.end())) client->drop();
      work_.reset();
    });
    thread_.join();
  }

  int port() const override { return endpoint_.port(); }
  std::string address() const override { return endpoint_.address().to_string(); }

  bool drain(Milliseconds timeout) override {
    asio::post(shared_.io, [this] { close(); });
    std::unique_lock lock(mutex_);
    return left_.wait_until(lock, deadline_after(timeout), [this] { return closed_ && clients_ == 0; });
  }

 private:
  void listen(const std::string& host, unsigned short port) {
    asio::error_code error = asio::error::address_family_not_supported;
    if (host.empty() && !shared_.secret.empty()) {  // all interfaces, for IPv4 and, if available, IPv6
      error = bind({tcp::v6(), port});
      if (error && error != asio::error::address_in_use) error = bind({tcp::v4(), port});
    } else {
      for (const asio::ip::address& address : addresses_of(host.empty() ? loopback_host() : host)) {
        check(!shared_.secret.empty() || address.is_loopback(),
              "[store] without a secret a store listens on loopback only, but ", host,
              " is not a loopback address; set TAPESTRY_SECRET to the same text on all hosts");
        error = bind({address, port});
        if (error != kNotHere) break;
      }
    }
    const std::string place = concat({host.empty() ? "this host" : host, ", port ", port});
    if (error == asio::error::address_in_use) {
      const std::string holder = port_holder(port);
      fail<DistributedError>(
          "[store] cannot listen at ", place, ": taken by ",
          holder.empty() ? "a process of another user" : holder,
          "; end it, or choose another port (TAPESTRY_PORT, MASTER_PORT, --rdzv-endpoint)");
    }
    check<DistributedError>(!error, "[store] cannot listen at ", place, ": ", error.message(),
                            error == asio::error::no_descriptors
                                ? "; raise the limit of open files (ulimit -n)"
                                : "; use an address of this machine and a port that this user may bind");
    endpoint_ = acceptor_.local_endpoint();
  }

  asio::error_code bind(const tcp::endpoint& endpoint) {
    asio::error_code error, ignored;
    acceptor_.close(ignored);
    if (acceptor_.open(endpoint.protocol(), error)) return error;
    ::fcntl(acceptor_.native_handle(), F_SETFD,
            FD_CLOEXEC);  // programs that this process starts must not inherit it
    acceptor_.set_option(tcp::acceptor::reuse_address(true),
                         ignored);  // earlier connections may be in TIME_WAIT
    if (endpoint.address().is_v6()) acceptor_.set_option(asio::ip::v6_only(false), ignored);
    if (acceptor_.bind(endpoint, error)) return error;
    acceptor_.listen(asio::socket_base::max_listen_connections, error);
    return error;
  }

  /// A name such as localhost may have addresses that no interface of this host has. Those of IPv4 come
  /// first.
  std::vector<asio::ip::address> addresses_of(const std::string& host) {
    asio::error_code error;
    const auto found = tcp::resolver(shared_.io).resolve(host, "", error);
    check<DistributedError>(!error && !found.empty(), "[store] cannot find ", host, ": ", error.message(),
                            "; use a name or an address of this machine");
    std::vector<asio::ip::address> addresses;
    for (const auto& entry : found) addresses.push_back(entry.endpoint().address());
    std::stable_partition(addresses.begin(), addresses.end(), [](const auto& a) { return a.is_v4(); });
    return addresses;
  }

  void run() {
    for (;;) {
      try {
        shared_.io.run();
        return;
      } catch (const std::exception&) {  // out of memory for a new connection
      }
    }
  }

  void accept() {
    acceptor_.async_accept([this](const asio::error_code& error, tcp::socket socket) {
      if (closed_) return;
      if (error) {  // most likely out of file descriptors: drops the oldest stranger and tries again later
        drop_oldest_stranger();
        pause_.expires_after(Milliseconds(50));
        pause_.async_wait([this](const asio::error_code& cancelled) {
          if (!cancelled) accept();
        });
        return;
      }
      accept();
      ::fcntl(socket.native_handle(), F_SETFD, FD_CLOEXEC);
      if (shared_.strangers.size() >= kMostStrangers) drop_oldest_stranger();
      shared_.strangers.push_back(std::make_shared<ClientConnection>(shared_, std::move(socket)));
      std::shared_ptr(shared_.strangers.back())->start();
    });
  }

  void drop_oldest_stranger() {
    if (!shared_.strangers.empty()) std::shared_ptr(shared_.strangers.front())->drop();
  }

  void close() {
    asio::error_code ignored;
    acceptor_.close(ignored);
    pause_.cancel();
    while (!shared_.strangers.empty()) drop_oldest_stranger();
    const std::lock_guard lock(mutex_);
    closed_ = true;
    left_.notify_all();
  }

  Shared shared_;
  asio::executor_work_guard<asio::io_context::executor_type> work_{shared_.io.get_executor()};
  tcp::acceptor acceptor_{shared_.io};
  asio::steady_timer pause_{shared_.io};
  tcp::endpoint endpoint_;
  std::mutex mutex_;
  std::condition_variable left_;
  std::size_t clients_ = 0;
  bool closed_ = false;
  std::thread thread_;
};

}  // namespace

std::unique_ptr<StoreServer> start_store_server(const std::string& host, int port,
                                                const TcpOptions& options) {
  try {
    return std::make_unique<Server>(host, port, options);
  } catch (const std::system_error& e) {  // of Asio
    fail<DistributedError>("[store] cannot start the server: ", e.what(),
                           "; raise the limit of open files (ulimit -n)");
  }
}

}  // namespace tapestry::distributed
