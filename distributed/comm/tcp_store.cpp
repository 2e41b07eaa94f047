// The client of the TCP store. Each request in flight has its own connection, so that a request that waits
// does not delay others. Idle connections are kept for later requests.
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "tapestry/distributed/comm/internal/deadline.h"
#include "tapestry/distributed/comm/internal/held_key.h"
#include "tapestry/distributed/comm/internal/key_table.h"
#include "tapestry/distributed/comm/internal/sha256.h"
#include "tapestry/distributed/comm/internal/sockets.h"
#include "tapestry/distributed/comm/internal/tcp_wire.h"

namespace tapestry::distributed {
namespace {

using wire::Op;
using wire::Request;
using wire::Response;
using wire::Status;

constexpr std::size_t kKept = 4;
constexpr Milliseconds kReconnect{2'000};  // to reconnect to a server that has answered before

/// Thrown if connecting failed but may succeed later; holds the reason.
struct Unreachable {
  std::string why;
};

/// A connection whose operations wait until they end or the deadline passes. They throw Unreachable.
class ServerConnection {
 public:
  ServerConnection(const std::string& host, int port, const std::string& secret, Deadline deadline) {
    connect(host, port, deadline);
    set_option(socket_.get(), IPPROTO_TCP, TCP_NODELAY, 1);
    set_option(socket_.get(), SOL_SOCKET, SO_KEEPALIVE, 1);
    introduce(secret, concat({host, ":", port}), deadline);
  }

  void write(std::string_view bytes, Deadline deadline) {
    for (;; wait(POLLOUT, deadline)) {
      fail_if(send_some(socket_.get(), bytes));
      if (bytes.empty()) return;
    }
  }

  std::string read(std::size_t bytes, Deadline deadline) {
    std::string out;
    out.reserve(bytes);
    for (;; wait(POLLIN, deadline)) {
      fail_if(receive(socket_.get(), out, bytes));
      if (out.size() == bytes) return out;
    }
  }

 private:
  static void fail_if(int error) {
    if (error != 0)
      throw Unreachable{error == ECONNRESET ? "it closed the connection" : std::strerror(error)};
  }

  void wait(short events, Deadline deadline) const {
    if (!wait_until(socket_.get(), events, deadline))
      throw Unreachable{"it did not answer before the deadline"};
  }

  void connect(const std::string& host, int port, Deadline deadline) {
    std::string why;
    for (const SocketAddress& address : addresses_of(host, port, &why)) {
      int error = start_connect(address, socket_);
      check<DistributedError>(!no_room(error), "[store] cannot connect to ", host, ":", port, ": ",
                              std::strerror(error), "; raise the limit of open files (ulimit -n)");
      if (error == 0) wait(POLLOUT, deadline), error = connect_error(socket_.get());
      if (error == 0) return refuse_self();
      why = std::strerror(error);
    }
    throw Unreachable{why};
  }

  /// If nobody listens at an ephemeral port of this host, the kernel may choose that port for the client's
  /// own end. TCP then connects the socket to itself (simultaneous open), and the store cannot listen there.
  /// A reset frees the port at once, while a normal close would keep it in TIME_WAIT.
  void refuse_self() const {
    const SocketAddress own = address_of(socket_.get(), ::getsockname),
                        other = address_of(socket_.get(), ::getpeername);
    if (own.host() != other.host() || own.port() != other.port()) return;
    const linger reset{1, 0};
    ::setsockopt(socket_.get(), SOL_SOCKET, SO_LINGER, &reset, sizeof reset);
    throw Unreachable{"nobody listens there yet"};
  }

  void introduce(const std::string& secret, const std::string& place, Deadline deadline) {
    const std::string greeting = read(wire::kGreeting.size() + wire::kNonce, deadline);
    check<DistributedError>(greeting.starts_with(wire::kGreeting), "[store] the program that listens at ",
                            place, " is not a store of this version; choose another MASTER_PORT");
    const std::string theirs = greeting.substr(wire::kGreeting.size());
    const std::string ours = random_bytes(wire::kNonce);
    write(ours + wire::proof(wire::Side::client, secret, theirs, ours), deadline);
    const bool welcome = read(1, deadline)[0] == wire::kWelcome;
    check<DistributedError>(
        welcome && equal_in_constant_time(read(wire::kProof, deadline),
                                          wire::proof(wire::Side::server, secret, theirs, ours)),
        "[store] the store at ", place, " has another secret than this process",
        secret.empty() ? ", which has none" : "",
        "; set TAPESTRY_SECRET to the same text for all ranks, or start them with one launcher");
  }

  Fd socket_;
};

class TcpStore final : public Store {
 public:
  TcpStore(std::string host, int port, TcpOptions options)
      : host_(std::move(host)), port_(port), options_(std::move(options)) {
    check(port >= 1 && port <= 65535, "[store] port ", port, " is not valid; use 1 to 65535");
    try {
      kept_.push_back(connect(deadline_after(options_.connect_timeout)));
    } catch (const Unreachable& unreachable) {
      fail<TimeoutError>("[store] no store answered at ", host_, ":", port_, " within ",
                         options_.connect_timeout.count(), " ms (last: ", unreachable.why,
                         "); check that rank 0 or the launcher is running, and that MASTER_ADDR and "
                         "MASTER_PORT are correct");
    }
  }

  void set(std::string_view key, std::string_view value) override {
    check_key(key), check_value(value);
    request({.op = Op::set, .key = std::string(key), .value = std::string(value)});
  }

  std::string get(std::string_view key, Milliseconds timeout) override {
    check_key(key);
    const Milliseconds wait = std::clamp(timeout, Milliseconds(0), kLongestWait);
    Response response = request({.op = Op::get, .number = wait.count(), .key = std::string(key)}, wait);
    check<TimeoutError>(response.status == Status::ok, "[store] key \"", key, "\" was not set within ",
                        timeout.count(), " ms at ", str(), "; check that the rank that sets it is running");
    return std::move(response.value);
  }

  std::optional<std::string> try_get(std::string_view key) override {
    check_key(key);
    Response response = request({.op = Op::try_get, .key = std::string(key)});
    return response.status == Status::ok ? std::optional(std::move(response.value)) : std::nullopt;
  }

  std::int64_t add(std::string_view key, std::int64_t amount) override {
    check_key(key);
    return std::stoll(request({.op = Op::add, .number = amount, .key = std::string(key)}).value);
  }

  std::string compare_set(std::string_view key, std::optional<std::string_view> expected,
                          std::string_view desired) override {
    check_key(key), check_value(desired);
    Request r{.op = Op::compare_set, .key = std::string(key), .value = std::string(desired)};
    if (expected) check_value(*expected), r.expected = std::string(*expected);
    return request(r).value;
  }

  bool erase(std::string_view key) override {
    check_key(key);
    return request({.op = Op::erase, .key = std::string(key)}).status == Status::ok;
  }

  /// Returns the connection that holds the key, or null.
  std::shared_ptr<void> hold(const std::string& key, const std::string& value) {
    check_key(key), check_value(value);
    std::unique_ptr<ServerConnection> connection;
    const Response response = request({.op = Op::hold, .key = key, .value = value}, {}, &connection);
    return response.status == Status::ok ? std::shared_ptr<void>(std::move(connection)) : nullptr;
  }

  std::string str() const override { return concat({"tcp ", host_, ":", port_}); }

 private:
  static constexpr Milliseconds kLongestWait = std::chrono::hours(24 * 30);

  /// Connects, and tries again until the deadline.
  std::unique_ptr<ServerConnection> connect(Deadline deadline) const {
    for (Milliseconds pause{10};; pause = std::min(2 * pause, Milliseconds(200))) {
      try {
        const Deadline attempt = std::min(deadline, deadline_after(options_.request_timeout));
        return std::make_unique<ServerConnection>(host_, port_, options_.secret, attempt);
      } catch (const Unreachable&) {
        if (Clock::now() + pause >= deadline) throw;
      }
      std::this_thread::sleep_for(pause);
    }
  }

  /// Keeps the connection for later requests, or moves it to `used`.
  Response request(const Request& request, Milliseconds wait = Milliseconds(0),
                   std::unique_ptr<ServerConnection>* used = nullptr) {
    const Deadline deadline = deadline_after(wait + options_.request_timeout);
    std::string why = "the response is malformed";
    try {
      std::unique_ptr<ServerConnection> connection = kept();
      if (!connection) connection = connect(deadline_after(std::min(kReconnect, options_.request_timeout)));
      connection->write(wire::encode(request), deadline);
      const std::size_t size = wire::read_size(connection->read(wire::kSize, deadline));
      if (size <= wire::kMaxResponse) {
        if (auto response = wire::decode_response(connection->read(size, deadline))) {
          if (used) *used = std::move(connection);
          else keep(std::move(connection));
          check(response->status != Status::refused, response->value);
          check<DistributedError>(response->status != Status::full, "[store] ", str(),
                                  " is full: no room for key \"", request.key, "\" (", request.value.size(),
                                  " bytes); erase what is not needed");
          return *std::move(response);
        }
      }
    } catch (const Unreachable& unreachable) {
      why = unreachable.why;
    }
    fail<DistributedError>(
        "[store] ", str(), " failed: ", why,
        "; check whether the process that holds the store (rank 0 or the launcher) and its host are running");
  }

  std::unique_ptr<ServerConnection> kept() {
    const std::lock_guard lock(mutex_);
    if (kept_.empty()) return nullptr;
    std::unique_ptr<ServerConnection> connection = std::move(kept_.back());
    kept_.pop_back();
    return connection;
  }
  void keep(std::unique_ptr<ServerConnection> connection) {
    const std::lock_guard lock(mutex_);
    if (kept_.size() < kKept) kept_.push_back(std::move(connection));
  }

  const std::string host_;
  const int port_;
  const TcpOptions options_;
  std::mutex mutex_;
  std::vector<std::unique_ptr<ServerConnection>> kept_;
};

}  // namespace

std::shared_ptr<void> hold_key(const std::string& host, int port, const std::string& key,
                               const std::string& value, const TcpOptions& options) {
  return TcpStore(host, port, options).hold(key, value);
}

std::shared_ptr<Store> tcp_store(const std::string& host, int port, const TcpOptions& options) {
  return std::make_shared<TcpStore>(host, port, options);
}

}  // namespace tapestry::distributed
