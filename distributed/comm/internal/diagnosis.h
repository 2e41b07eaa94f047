#pragma once
// The watchdog of a rank: finds out why the rank's groups failed, with a table of where every rank is.
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tapestry/distributed/comm/internal/post_order.h"
#include "tapestry/distributed/comm/process_group.h"

namespace tapestry::distributed {

/// Why the groups of a rank failed.
struct Failure {
  bool timeout = false;
  std::string text;
  /// Throws TimeoutError or DistributedError.
  [[noreturn]] void raise() const;
};

/// One watchdog thread for all groups of a rank. It warns about slow collectives. When a call fails on this
/// rank, it tells the other ranks through the store, collects where each of them is, and forms one error
/// text. When another rank reports a failure, it publishes where this rank is, and makes this rank's groups
/// fail too.
class Diagnosis {
 public:
  struct Cause {
    bool timeout = false;
    bool complete = false;  ///< the text is complete without the table of ranks
    std::string call;       ///< CollectiveRecord::brief() of the call that failed; empty if it was not a call
    std::string text;
  };

  /// `store` is shared by these ranks alone. The defaults of `options` must have been filled in.
  Diagnosis(std::shared_ptr<Store> store, int rank, int size, const GroupOptions& options,
            std::shared_ptr<const Recorder> recorder, std::shared_ptr<const PostOrder> posts);
  /// Calls leave().
  ~Diagnosis();
  Diagnosis(const Diagnosis&) = delete;
  Diagnosis& operator=(const Diagnosis&) = delete;

  /// Adds a backend that is aborted on a failure.
  void watch(const std::shared_ptr<Backend>& backend);
  /// The failure of this rank's groups, or null.
  std::shared_ptr<const Failure> failure() const;
  /// Reports a failure on this rank. Returns the first failure of this rank, with the table. That takes about
  /// three seconds if a rank does not answer, and at most five. During the call, the recorder must still show
  /// the failed call as running.
  std::shared_ptr<const Failure> fail(const Cause& cause);
  /// Tells the other ranks that this rank leaves, and ends the thread. Takes at most a few seconds.
  void leave();

  struct State;

 private:
  std::shared_ptr<State> state_;
  std::thread thread_;
};

}  // namespace tapestry::distributed
