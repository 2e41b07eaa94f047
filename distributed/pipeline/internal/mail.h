#pragma once
// What stages on different threads hand to each other.
#include <chrono>
#include <condition_variable>
#include <map>
#include <mutex>
#include <optional>
#include <tuple>

#include "tapestry/distributed/pipeline/internal/stage_graphs.h"

namespace tapestry::distributed {

/// One parcel an address, put there once and taken once. Thread-safe.
class Mail {
 public:
  /// Values to a stage (forward) or gradients (backward).
  struct Address {
    std::size_t stage;
    Action action;
  };

  explicit Mail(std::chrono::seconds timeout) : timeout_(timeout) {}
  void put(const Address& to, Parcel parcel);
  /// Waits for it. Nothing once the mail is closed; TimeoutError after the timeout.
  std::optional<Parcel> take(const Address& to);
  /// Ends all waiting, now and later: a stage has failed.
  void close();
  bool is_closed();

 private:
  using Key = std::tuple<std::size_t, Action::Kind, int>;
  static Key key(const Address& a) { return {a.stage, a.action.kind, a.action.micro_batch}; }

  const std::chrono::seconds timeout_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<Key, Parcel> parcels_;
  bool closed_ = false;
};

}  // namespace tapestry::distributed
