#pragma once
// What a transport does: move dense memory, the host's or a GPU's, between ranks, and no more. Not in
// tapestry.h: users call ProcessGroup, which checks arguments, compares descriptors and bounds waits before
// it comes here.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "tapestry/core/device.h"
#include "tapestry/core/dtype.h"
#include "tapestry/distributed/comm/store.h"

namespace tapestry::distributed {

/// `mean` divides the sum by the number of ranks, in floating dtypes only. f16 and bf16 are added in float
/// and rounded after each addition. bool: sum and max are "or", product and min "and".
enum class ReduceOp : std::uint8_t { sum, mean, min, max, product };
const char* reduce_op_name(ReduceOp op);

/// One rank's end of a transport between `size()` ranks. Collectives block until this rank's part is done,
/// are called by one thread at a time, in the same order with equal arguments on all ranks. All throw
/// TimeoutError at the deadline and DistributedError when a peer is gone; the backend is of no more use then.
class Backend {
 public:
  virtual ~Backend() = default;
  virtual const char* name() const = 0;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  /// The memory that `data`, `in` and `out` of all calls are in. If it is a CUDA device's, calls but
  /// barrier() give their work to current_stream(device()) and return; poll() says what becomes of it.
  virtual Device device() const { return kCPU; }
  /// Throws DistributedError if work given to a stream has failed, or was aborted. From any thread.
  virtual void poll() {}

  /// In place; the same bits on every rank.
  virtual void all_reduce(void* data, std::int64_t count, DType dtype, ReduceOp op, Deadline deadline) = 0;
  /// In place at the root; elsewhere `data` is left in any state.
  virtual void reduce(void* data, std::int64_t count, DType dtype, ReduceOp op, int root,
                      Deadline deadline) = 0;
  /// `in`: size() x count, `out`: count; they do not overlap.
  virtual void reduce_scatter(const void* in, void* out, std::int64_t count, DType dtype, ReduceOp op,
                              Deadline deadline) = 0;
  virtual void broadcast(void* data, std::size_t bytes, int root, Deadline deadline) = 0;
  /// `out` receives size() x bytes, by rank.
  virtual void all_gather(const void* in, void* out, std::size_t bytes, Deadline deadline) = 0;
  /// `out` is null but at the root.
  virtual void gather(const void* in, void* out, std::size_t bytes, int root, Deadline deadline) = 0;
  /// `in` is null but at the root.
  virtual void scatter(const void* in, void* out, std::size_t bytes, int root, Deadline deadline) = 0;
  /// Block i of `in` goes to rank i, whose block rank() it becomes.
  virtual void all_to_all(const void* in, void* out, std::size_t bytes, Deadline deadline) = 0;
  virtual void barrier(Deadline deadline) = 0;
  /// Point to point; may be called by several threads at once, and while a collective runs, with other peers
  /// or tags. Messages of one (peer, tag) arrive in order. send() may return before the message is received.
  virtual void send(const void* data, std::size_t bytes, int peer, std::uint32_t tag, Deadline deadline) = 0;
  virtual void recv(void* data, std::size_t bytes, int peer, std::uint32_t tag, Deadline deadline) = 0;

  /// From any thread, any number of times: calls in progress here and on peers that wait for this rank throw
  /// DistributedError with `why` soon, later ones at once.
  virtual void abort(const std::string& why) noexcept = 0;
  /// The same transport between some of its ranks, this one included; a collective call of those. The ranks
  /// are numbered in the order of `ranks`, which may be any; `store` is theirs alone.
  virtual std::shared_ptr<Backend> split(const std::vector<int>& ranks, const std::shared_ptr<Store>& store,
                                         Deadline deadline) = 0;
};

/// Ranks as threads of one process: element i belongs to rank i. Sums are formed in the order of the ranks.
std::vector<std::shared_ptr<Backend>> local_backends(int size);
/// Between processes, over TCP by Gloo; `store` is this group's alone. Ranks that are all on one host reduce,
/// broadcast and gather through memory that they share, unless `shared_memory` is false or
/// TAPESTRY_SHARED_MEMORY 0 on one of them, or the system has none: then a line on standard error says so.
/// Sums are formed in the order of the ranks, as local ones are. Throws DistributedError where the library
/// was built without Gloo.
std::shared_ptr<Backend> gloo_backend(const std::shared_ptr<Store>& store, int rank, int size,
                                      Milliseconds timeout, bool shared_memory = true);

/// Between GPUs, one a rank, by NCCL; `store` is this group's alone. bool and 8-bit sums as above, f16 and
/// bf16 as NCCL does them. Throws DistributedError where the library was built without NCCL, DeviceError
/// unless `device` is a CUDA device that exists.
std::shared_ptr<Backend> nccl_backend(const std::shared_ptr<Store>& store, int rank, int size, Device device,
                                      Milliseconds timeout);
bool built_with_nccl();

/// out[i] = values[0][i] op values[1][i] ... in this order, each rounded to dtype, divided by `size` where op
/// is mean: what all_reduce is. `out` may be one of the `size` values. In the calling thread. TypeError for
/// the mean of integers.
void reduce_in_order(void* out, const void* const* values, int size, std::int64_t count, DType dtype,
                     ReduceOp op);

}  // namespace tapestry::distributed
