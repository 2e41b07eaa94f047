#pragma once
// A key-value store that all ranks of a job share. Ranks use it to find one another and to report errors.
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "tapestry/core/clock.h"
#include "tapestry/distributed/comm/error.h"

namespace tapestry::distributed {

using Milliseconds = std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;
using Deadline = Clock::time_point;

/// Keys have up to kMaxKey bytes and values up to kMaxValue bytes, with any content; larger ones throw
/// ValueError. Calls are atomic and thread-safe, and their time is bounded: if the store does not answer,
/// they throw a DistributedError that names its address.
class Store {
 public:
  static constexpr std::size_t kMaxKey = 4096;
  static constexpr std::size_t kMaxValue = 16 << 20;

  virtual ~Store() = default;
  virtual void set(std::string_view key, std::string_view value) = 0;
  /// Waits until the key exists, and returns its value. After `timeout` it throws a TimeoutError that names
  /// the key.
  virtual std::string get(std::string_view key, Milliseconds timeout) = 0;
  /// Returns the value, or nullopt if the key does not exist. Does not wait.
  virtual std::optional<std::string> try_get(std::string_view key) = 0;
  /// Adds to the decimal number under the key (0 if the key is absent) and returns the sum. Throws ValueError
  /// if the value is not a number, or if the sum overflows.
  virtual std::int64_t add(std::string_view key, std::int64_t amount) = 0;
  /// Sets the key to `desired` if it holds `expected` (for nullopt: if it is absent). Returns the value that
  /// the key holds afterwards.
  virtual std::string compare_set(std::string_view key, std::optional<std::string_view> expected,
                                  std::string_view desired) = 0;
  /// Returns true if the key existed.
  virtual bool erase(std::string_view key) = 0;
  /// The kind and address, for messages: "tcp 127.0.0.1:29500", "file /tmp/x", "memory".
  virtual std::string str() const = 0;
};

/// A store in memory, for ranks that are threads of one process.
std::shared_ptr<Store> memory_store();

/// A store in one file, for ranks that share a file system. The file is locked during each call. It is not
/// removed at the end, so each job needs its own path; otherwise it finds the keys of the earlier job. Throws
/// IoError if the file cannot be written.
std::shared_ptr<Store> file_store(std::string path);

/// A view of `base` that puts `prefix` before every key.
std::shared_ptr<Store> prefix_store(std::string prefix, std::shared_ptr<Store> base);

struct TcpOptions {
  /// Only processes with the same secret can connect. If it is empty, the server listens on loopback only.
  /// The secret is never sent: each side proves that it knows the secret by an HMAC-SHA-256 of the other's
  /// nonce.
  std::string secret;
  /// How long a client tries to connect. The server may start later than the client.
  Milliseconds connect_timeout{60'000};
  /// The time limit of one request, from its first byte to the end of its response, without the time that
  /// get() waits for a key. Both sides enforce it. The server also limits the handshake to this time, at most
  /// 5 s.
  Milliseconds request_timeout{30'000};
};

/// The server of a TCP store. It runs on its own thread until it is destroyed. The number of connections, the
/// size and time of requests, and the memory for keys and values are limited. A malformed or unauthenticated
/// request ends only its own connection.
class StoreServer {
 public:
  virtual ~StoreServer() = default;
  virtual int port() const = 0;
  /// The address that the server is bound to.
  virtual std::string address() const = 0;
  /// Accepts no more clients, and waits until all clients have disconnected. Returns false if some are still
  /// connected after `timeout`. The process that holds the store calls it before it ends.
  virtual bool drain(Milliseconds timeout) = 0;
};

/// Starts a server. Port 0 chooses a free port. `host` is the address to listen on; if it is empty, the
/// server listens on all interfaces if there is a secret, otherwise on loopback. Throws DistributedError if
/// the port is in use (the text names the process if the system reports it), and ValueError if `host` is not
/// loopback and there is no secret.
std::unique_ptr<StoreServer> start_store_server(const std::string& host, int port,
                                                const TcpOptions& options = {});

/// A client of the StoreServer at host:port. Connects now, with retries until connect_timeout. Throws
/// TimeoutError if no server answers, and DistributedError if the server has another secret.
std::shared_ptr<Store> tcp_store(const std::string& host, int port, const TcpOptions& options = {});

}  // namespace tapestry::distributed
