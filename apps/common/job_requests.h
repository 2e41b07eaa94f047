#pragma once
// What the ranks of a job want to do after a step: stop because of a signal, or save a checkpoint.
#include <memory>

#include "tapestry/core/tensor.h"
#include "tapestry/distributed/comm/process_group.h"

namespace apps {

/// The wishes of a rank after a step. They apply to the whole job.
struct Request {
  int signal = 0;     ///< the number of the signal that asks to stop, or 0
  bool save = false;  ///< save a checkpoint
};

class JobRequests {
 public:
  explicit JobRequests(std::shared_ptr<tapestry::distributed::ProcessGroup> group);
  /// Combines the requests of all ranks and returns the same result on all ranks. With several ranks the
  /// result is that of the previous call, so that the all-reduce overlaps the step between the calls.
  /// Collective.
  Request agree(const Request& own);

 private:
  std::shared_ptr<tapestry::distributed::ProcessGroup> group_;
  tapestry::Tensor requests_;               // u8 [2]: the signal's number, and 1 to save a checkpoint
  tapestry::distributed::Work all_reduce_;  // of requests_
  bool pending_ = false;                    // all_reduce_ has been started
};

}  // namespace apps
