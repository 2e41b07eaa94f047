#pragma once
// A few bytes under a key that all ranks of a job see: how they find one another and say what went wrong.
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "tapestry/distributed/comm/error.h"

namespace tapestry::distributed {

using Milliseconds = std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;
using Deadline = Clock::time_point;

/// Keys are up to kMaxKey bytes and values up to kMaxValue, of any content; ValueError beyond. Every call is
/// atomic, may come from any thread, and ends within a bounded time: where the store itself does not answer,
/// with a DistributedError that names its address.
class Store {
 public:
  static constexpr std::size_t kMaxKey = 4096;
  static constexpr std::size_t kMaxValue = 16 << 20;

  virtual ~Store() = default;
  virtual void set(std::string_view key, std::string_view value) = 0;
  /// Waits until the key is there. Throws TimeoutError, naming the key.
  virtual std::string get(std::string_view key, Milliseconds timeout) = 0;
  /// Does not wait.
  virtual std::optional<std::string> try_get(std::string_view key) = 0;
  /// Adds to a decimal number (0 if the key is absent) and returns the sum. Throws ValueError if something
  /// else is there, or the sum overflows.
  virtual std::int64_t add(std::string_view key, std::int64_t amount) = 0;
  /// Sets `desired` if the key holds `expected` (nullopt: is absent). Returns what it holds afterwards.
  virtual std::string compare_set(std::string_view key, std::optional<std::string_view> expected,
                                  std::string_view desired) = 0;
  /// True if it was there.
  virtual bool erase(std::string_view key) = 0;
  /// For messages: "tcp 127.0.0.1:29500", "file /tmp/x", "memory".
  virtual std::string str() const = 0;
};

/// For ranks that are threads of one process.
std::shared_ptr<Store> memory_store();

/// For ranks that share a file system: one file, locked while it is read or changed. It is not removed; a
/// later job needs another path (or finds what the earlier one left). Throws IoError if it cannot be written.
std::shared_ptr<Store> file_store(std::string path);

/// All keys of `base` under `prefix`.
std::shared_ptr<Store> prefix_store(std::string prefix, std::shared_ptr<Store> base);

struct TcpOptions {
  /// All who hold it may connect; with an empty one the server listens on loopback only. It does not cross
  /// the wire: each side answers the other's nonce with HMAC-SHA-256.
  std::string secret;
  /// A client's to reach the server, which may start later.
  Milliseconds connect_timeout{60'000};
  /// For one request, from its first byte to its answer, less what a get() waits for its key. On either side;
  /// the server gives a stranger as long to prove itself, at most 5 s.
  Milliseconds request_timeout{30'000};
};

/// Holds the keys and answers clients on a thread of its own, until it is destroyed. Bounded in all that a
/// stranger can ask of it: connections, size and time of a request, bytes held; what is malformed or not
/// authenticated costs that connection only.
class StoreServer {
 public:
  virtual ~StoreServer() = default;
  virtual int port() const = 0;
  /// The address it is bound to.
  virtual std::string address() const = 0;
  /// Accepts nobody more and waits until all clients have gone; false if some are still there after `timeout`.
  /// For the process that is to end last.
  virtual bool drain(Milliseconds timeout) = 0;
};

/// Port 0 takes a free one. `host` is the interface to listen on: empty for all of them where there is a
/// secret, loopback without one. Throws DistributedError if the port is taken (saying by whom, where that can
/// be known), ValueError for a host other than loopback without a secret.
std::unique_ptr<StoreServer> start_store_server(const std::string& host, int port,
                                                const TcpOptions& options = {});

/// A client of a StoreServer at host:port. Connects at once, trying again until connect_timeout. Throws
/// TimeoutError, or DistributedError for a secret that is not the server's.
std::shared_ptr<Store> tcp_store(const std::string& host, int port, const TcpOptions& options = {});

}  // namespace tapestry::distributed
