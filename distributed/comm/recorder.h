#pragma once
// The last collectives of a rank, always on, and the table of all ranks' when one does not complete.
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "tapestry/core/dtype.h"
#include "tapestry/core/shape.h"
#include "tapestry/distributed/comm/backend.h"

namespace tapestry::distributed {

enum class Op : std::uint8_t {
  all_reduce,
  broadcast,
  reduce,
  all_gather,
  reduce_scatter,
  gather,
  scatter,
  all_to_all,
  barrier,
  send,
  recv,
  new_group
};
const char* op_name(Op op);

/// One call of one rank.
struct CollectiveRecord {
  std::uint64_t sequence = 0;  ///< counts this group's collectives on this rank, from 1
  std::string group;           ///< "world", or a sub-group's name
  Op op = Op::barrier;
  ReduceOp reduce = ReduceOp::sum;
  int peer = -1;  ///< root or peer
  DType dtype = DType::u8;
  Shape shape;
  std::string name;                                     ///< bucket or parameter, or what the caller gave
  std::string site;                                     ///< "train.cpp:88"
  Clock::time_point enqueued{}, started{}, finished{};  ///< not yet: time_point{}
  bool failed = false;
  /// `#42 all_reduce(bucket 1)`, in front of it the group if that is not "world"
  std::string brief() const;
  /// `#42 all_reduce(bucket 1) float32 [1024] sum at train.cpp:88`
  std::string str() const;
};

/// A ring of the last kKept calls. Thread-safe.
class Recorder {
 public:
  static constexpr std::size_t kKept = 1000;
  /// Returns a ticket for the two calls below, which do nothing when the record has been overwritten.
  std::uint64_t enqueued(CollectiveRecord record);
  void started(std::uint64_t ticket);
  void finished(std::uint64_t ticket, bool failed = false);
  /// Oldest first.
  std::vector<CollectiveRecord> records() const;
  /// The calls that were started and have not ended, oldest first.
  std::vector<CollectiveRecord> running() const;
  /// The call that ended last, if any.
  std::optional<CollectiveRecord> last() const;

 private:
  mutable std::mutex mutex_;
  std::vector<CollectiveRecord> ring_;
  std::uint64_t next_ = 0;
};

}  // namespace tapestry::distributed
