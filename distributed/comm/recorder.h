#pragma once
// Records the last collectives of a rank. When a collective does not complete, error messages show where each
// rank is.
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

/// One call of a collective, or of a message, on one rank.
struct CollectiveRecord {
  std::uint64_t sequence = 0;   ///< number of this call among the group's collectives on this rank, from 1
  std::string group;            ///< "world", or the name of a sub-group
  std::uint64_t group_key = 0;  ///< identifies the group: several may have one name
  Op op = Op::barrier;
  ReduceOp reduce = ReduceOp::sum;
  int peer = -1;  ///< the root of the collective, or the peer of the message
  int dim = 0;    ///< of all_gather and reduce_scatter: the dimension along which the parts lie
  /// The dtype and shape of this rank's part. For a list of tensors, `shape` has the number of their
  /// elements, or of their bytes with dtype u8 if their dtypes differ.
  DType dtype = DType::u8;
  Shape shape;
  /// The number of tensors in the call, and one line of dtype and shape for each. `list` is empty if the call
  /// has one tensor. For an all_to_all of lists, the tensors are the inputs, and `list` has one line of
  /// the number of elements and the dtype for each of them, then one for each output.
  std::size_t tensors = 1;
  std::string list;
  std::string name;   ///< the name of the bucket or parameter, or the caller's `name`
  std::string site;   ///< "train.cpp:88"
  std::string after;  ///< the calls that it must wait for: "shard#4 reduce_scatter(bucket 1)"
  /// This rank's summand of the check that the ranks make their calls in one order (ProcessGroup); for the
  /// implementation.
  std::uint64_t order = 0;
  /// For an all_to_all of lists: this rank's summand of the check that the ends of each part fit; for the
  /// implementation.
  std::uint64_t parts = 0;
  Clock::time_point enqueued{}, started{}, finished{};  ///< time_point{} if not yet
  bool failed = false;
  /// "#42 all_reduce(bucket 1)", preceded by the group's name unless it is "world".
  std::string brief() const;
  /// "#42 all_reduce(bucket 1) float32 [1024] sum at train.cpp:88", or for a list of tensors
  /// "#43 all_gather(fsdp blocks.3) float32 [1024] in 12 tensors at train.cpp:90". The calls in `after`
  /// follow.
  std::string str() const;
};

/// A ring buffer of the last kKept calls. Thread-safe.
class Recorder {
 public:
  static constexpr std::size_t kKept = 1000;
  /// Adds a record. Returns a ticket for started() and finished(), which do nothing if the record has been
  /// overwritten.
  std::uint64_t enqueued(CollectiveRecord record);
  void started(std::uint64_t ticket);
  void finished(std::uint64_t ticket, bool failed = false);
  /// All records, oldest first.
  std::vector<CollectiveRecord> records() const;
  /// The calls that have started and not finished, oldest first.
  std::vector<CollectiveRecord> running() const;
  /// The call that finished last, if any.
  std::optional<CollectiveRecord> last() const;

 private:
  mutable std::mutex mutex_;
  std::vector<CollectiveRecord> ring_;
  std::uint64_t next_ = 0;
};

}  // namespace tapestry::distributed
