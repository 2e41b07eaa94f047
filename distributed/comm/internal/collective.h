#pragma once
// One collective of a rank: checked when it is called, carried out on the queue's thread.
#include "tapestry/core/tensor.h"
#include "tapestry/distributed/comm/backend.h"
#include "tapestry/distributed/comm/recorder.h"

namespace tapestry::distributed {

/// What a caller asked for. In place: `in` and `out` are the same tensor.
struct Collective {
  Op op = Op::barrier;
  ReduceOp reduce = ReduceOp::sum;
  int peer = -1;  // root or peer
  Tensor in, out;

  /// The tensor whose shape and dtype have to be the same on all ranks.
  const Tensor& part() const;
  /// The device that has a part in it, besides CPUs: the transport's, else the tensors'; kCPU if none has.
  Device device(Device transport) const;
  /// True if this rank's `out` is written.
  bool writes(int rank) const;
};

/// Throws ValueError, TypeError, IndexError or DeviceError for a call that does not fit.
void check_collective(const Collective& call, int rank, int size, Device transport);
/// Blocks until this rank's part is done, or given to the current stream of the device that has a part in it.
void carry_out(const Collective& call, Backend& backend, Deadline deadline);

}  // namespace tapestry::distributed
