#pragma once
// Mailbox carries messages between stages that run on different threads.
#include <chrono>
#include <condition_variable>
#include <map>
#include <mutex>
#include <optional>
#include <tuple>

#include "tapestry/distributed/pipeline/internal/stage_executor.h"

namespace tapestry::distributed {

/// Holds at most one message per address. A message is put once and taken once. Thread-safe.
class Mailbox {
 public:
  /// The address of a message: the receiving stage and the action that takes it. A message for a forward
  /// holds inputs, and one for a backward holds gradients.
  struct Address {
    std::size_t stage;
    Action action;
  };

  explicit Mailbox(std::chrono::seconds timeout) : timeout_(timeout) {}
  void put(const Address& to, Message message);
  /// Waits for the message at this address and removes it. Returns nothing if the mailbox is closed. Throws
  /// TimeoutError after the timeout.
  std::optional<Message> take(const Address& to);
  /// Ends all current and future waits, because a stage has failed.
  void close();
  bool is_closed();

 private:
  using Key = std::tuple<std::size_t, Action::Kind, int>;
  static Key key(const Address& a) { return {a.stage, a.action.kind, a.action.micro_batch}; }

  const std::chrono::seconds timeout_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<Key, Message> messages_;
  bool closed_ = false;
};

}  // namespace tapestry::distributed
