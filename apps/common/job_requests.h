#pragma once
// What the ranks of a job tell each other after a step: that they want to stop because of a signal, or to
// save a checkpoint, and, with --live, how they are.
#include <memory>
#include <vector>

#include "tapestry/apps/common/rank_rows.h"
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
  /// With `shares_rows`, each agree() also sends a RankRow of each rank. It must be the same on all ranks.
  explicit JobRequests(std::shared_ptr<tapestry::distributed::ProcessGroup> group, bool shares_rows = false);
  /// Combines the requests of all ranks and returns the same result on all ranks. With several ranks the
  /// result is that of the previous call, so that the all-reduce overlaps the step between the calls.
  /// Collective.
  Request agree(const Request& own);
  /// Sets the row that agree() sends.
  void share(const RankRow& row);
  /// The rows of all ranks that the result of the last agree() came with.
  const std::vector<RankRow>& rows() const { return rows_; }

 private:
  std::shared_ptr<tapestry::distributed::ProcessGroup> group_;
  const bool shares_rows_;
  RankRow own_;
  std::vector<RankRow> rows_;
  // u8: the signal's number, 1 to save a checkpoint, and the bytes of the rows. Each rank leaves the rows of
  // the others 0, so that the maximum of all ranks has each rank's bytes.
  tapestry::Tensor requests_;
  tapestry::distributed::Work all_reduce_;  // of requests_
  bool pending_ = false;                    // all_reduce_ has been started
};

}  // namespace apps
