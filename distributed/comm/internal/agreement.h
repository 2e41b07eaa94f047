#pragma once
// Comparisons of what the ranks of a group call: the same call, and the same order of calls in all groups.
#include <functional>
#include <string>
#include <vector>

#include "tapestry/distributed/comm/backend.h"
#include "tapestry/distributed/comm/error.h"
#include "tapestry/distributed/comm/recorder.h"

namespace tapestry::distributed {

/// Ranks are in different calls, or make calls in different orders. The text shows the calls, so no table of
/// ranks is needed.
class Mismatch : public DistributedError {
  using DistributedError::DistributedError;
};

/// The ranks of a group, which compare their calls. On host transports the ranks compare over the transport,
/// and all of them throw. Over GPUs they compare in the store. Used by one thread at a time.
class Agreement {
 public:
  /// `ranks` are the group's ranks, as numbered in the world. `log` returns PostOrder::log() of this rank for
  /// these ranks.
  Agreement(std::shared_ptr<Backend> backend, std::shared_ptr<Store> store, std::string group,
            std::vector<int> ranks, std::function<std::string()> log);

  /// Compares this call with those of the other ranks, and on host transports the orders too. If they differ,
  /// throws Mismatch on all ranks. Over GPUs no rank waits for another, so that the host stays ahead of the
  /// GPU, and only the ranks throw whose call differs from that of the first rank to come. Their failure
  /// aborts the other ranks.
  void compare_calls(const CollectiveRecord& record, Deadline deadline);
  /// Throws Mismatch on all ranks unless each two ranks of the group have made the calls of the groups that
  /// they share in one order, up to this call, which all ranks of the group make.
  void compare_orders(const CollectiveRecord& record, Deadline deadline);
  /// Over GPUs: erases the stored calls up to this one, which has finished on this rank.
  void forget_calls(const CollectiveRecord& record);

 private:
  void compare_calls_in_store(const CollectiveRecord& record);
  void compare_parts_in_store(const CollectiveRecord& record);
  std::uint64_t sum_in_store(const CollectiveRecord& record, Deadline deadline);
  std::vector<std::string> gather_texts(const CollectiveRecord& record, std::string text, Deadline deadline);
  [[noreturn]] void fail_for_order(const CollectiveRecord& record, Deadline deadline);
  bool on_gpu() const { return backend_->device().is_cuda(); }

  const std::shared_ptr<Backend> backend_;
  const std::shared_ptr<Store> store_;
  const std::string group_;
  const std::vector<int> ranks_;
  const std::function<std::string()> log_;
  std::uint64_t forgotten_ = 0;  // the last call that was erased; only forget_calls() uses it
};

}  // namespace tapestry::distributed
