#pragma once
// Why a rank's groups failed, and the table of where every rank is.
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tapestry/distributed/comm/process_group.h"

namespace tapestry::distributed {

/// Why all groups of a rank are of no more use.
struct Failure {
  bool timeout = false;
  std::string text;
  /// Throws TimeoutError or DistributedError.
  [[noreturn]] void raise() const;
};

/// One watchdog thread for all groups of a rank. It warns of what takes long; when something fails here it
/// tells the other ranks through the store, gathers where each of them is and makes one error of it; when
/// another rank says that something failed, it tells where this one is and fails too.
class Diagnosis {
 public:
  struct Cause {
    bool timeout = false;
    bool complete = false;  ///< the text needs no table of ranks
    std::string call;       ///< CollectiveRecord::brief() of what failed, if it was a call
    std::string text;
  };

  /// `store` is shared by these ranks alone, `options` holds no zeros.
  Diagnosis(std::shared_ptr<Store> store, int rank, int size, const GroupOptions& options,
            std::shared_ptr<const Recorder> recorder);
  /// As leave().
  ~Diagnosis();
  Diagnosis(const Diagnosis&) = delete;
  Diagnosis& operator=(const Diagnosis&) = delete;

  /// To be aborted on a failure.
  void watch(const std::shared_ptr<Backend>& backend);
  /// Null while all is well.
  std::shared_ptr<const Failure> failure() const;
  /// Something failed here. Returns the first failure of this rank, with the table, after about three seconds
  /// if some rank gives no answer, and at most five. While it runs the recorder must still show what failed
  /// as running.
  std::shared_ptr<const Failure> fail(const Cause& cause);
  /// Tells the others that this rank leaves, and ends the thread. Bounded.
  void leave();

 private:
  struct State;
  std::shared_ptr<State> state_;
  std::thread thread_;
};

}  // namespace tapestry::distributed
