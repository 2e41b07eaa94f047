#pragma once
// One collective call of a rank. It is checked in the caller's thread and runs in the thread of the group's
// queue.
#include <vector>

#include "tapestry/core/tensor.h"
#include "tapestry/distributed/comm/backend.h"
#include "tapestry/distributed/comm/recorder.h"

namespace tapestry::distributed {

/// The arguments of a call. `in` and `out` are the same tensor if the collective works in place. all_gather
/// and reduce_scatter have `ins` and `outs` instead, which have the same length. So has an all_to_all of
/// lists.
struct Collective {
  Op op = Op::barrier;
  ReduceOp reduce = ReduceOp::sum;
  int peer = -1;  // the root of the collective, or the peer of the message
  Tensor in, out;
  std::vector<Tensor> ins, outs;
  /// Of all_gather and reduce_scatter: the dimension along which the parts lie. If it is not 0, the one whole
  /// tensor is a view whose blocks are dimension 0 (blocks_along()).
  int dim = 0;

  bool has_lists() const { return op == Op::all_gather || op == Op::reduce_scatter || !outs.empty(); }
  /// The tensor whose shape and dtype must be equal on all ranks, unless has_lists().
  const Tensor& part() const;
  /// The same for a call with lists.
  const std::vector<Tensor>& parts() const { return op == Op::reduce_scatter ? outs : ins; }
  /// Returns the device on which the call runs: the transport's device if it is a CUDA device, otherwise the
  /// CUDA device of the tensors. Returns kCPU if neither is a CUDA device.
  Device device(Device transport) const;
  /// True if this rank's `out` is written.
  bool writes(int rank) const;
};

/// Checks that `whole` is `size` times `part` along dimension `dim`, which may be negative, and returns the
/// dimension. Throws ValueError or IndexError.
int check_along(const char* op, const Tensor& whole, const char* whole_is, const Tensor& part,
                const char* part_is, int dim, int size);
/// Throws ValueError, TypeError, IndexError or DeviceError for invalid arguments.
void check_collective(const Collective& call, int rank, int size, Device transport);
/// Runs the collective. Returns when this rank's part is done, or when it is enqueued on the current stream
/// if a CUDA device takes part.
void run_collective(const Collective& call, Backend& backend, Deadline deadline);

}  // namespace tapestry::distributed
