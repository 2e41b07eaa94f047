#pragma once
// Backends: transports that move contiguous memory of the host or of a GPU between ranks. Users call
// ProcessGroup instead, which checks arguments, compares the calls of the ranks and bounds waits. So
// tapestry.h does not include this header.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "tapestry/core/device.h"
#include "tapestry/core/dtype.h"
#include "tapestry/distributed/comm/store.h"

namespace tapestry {
class Stream;
}

namespace tapestry::distributed {

/// The operation of a reduction. `mean` divides the sum by the number of ranks; it needs a floating dtype.
/// f16 and bf16 are added in float and rounded after each addition. For bool, sum and max mean "or", and
/// product and min mean "and".
enum class ReduceOp : std::uint8_t { sum, mean, min, max, product };
const char* reduce_op_name(ReduceOp op);

/// One tensor of an all_gather(): `in` has `bytes` bytes, and `out` has a block of as many bytes for each
/// rank. The blocks begin `pitch` bytes apart. A block consists of `rows` equal runs of bytes, which begin
/// `row_pitch` bytes apart. On a CUDA device there is one row, and blocks have no gaps. `in` may be this
/// rank's block of `out` if that is one row; apart from that, no memory of a call overlaps.
struct GatherPart {
  const void* in = nullptr;
  void* out = nullptr;
  std::size_t bytes = 0, pitch = 0;
  std::size_t rows = 1, row_pitch = 0;
};
/// One tensor of a reduce_scatter(): `out` has `count` elements, and `in` has a block of as many elements for
/// each rank. Blocks and rows are as in GatherPart. `out` may be this rank's block of `in` if that is one
/// row; apart from that, no memory of a call overlaps.
struct ScatterPart {
  const void* in = nullptr;
  void* out = nullptr;
  std::int64_t count = 0;
  DType dtype = DType::u8;
  std::size_t pitch = 0;
  std::size_t rows = 1, row_pitch = 0;
  std::size_t bytes() const { return static_cast<std::size_t>(count) * dtype_size(dtype); }
};
/// What an all_to_all() exchanges with one rank: it sends `in`, and receives `out`. Each consists of rows as
/// a block of GatherPart does. Either may be empty.
struct ExchangePart {
  const void* in = nullptr;
  void* out = nullptr;
  std::size_t in_bytes = 0, out_bytes = 0;
  std::size_t in_rows = 1, in_pitch = 0, out_rows = 1, out_pitch = 0;
};
/// One message of Backend::exchange(): `bytes` bytes that are sent to `peer`, or received from it. The work
/// is enqueued on `stream`, which is not null.
struct MessagePart {
  bool sends = false;
  void* data = nullptr;  // only read if it is sent
  std::size_t bytes = 0;
  int peer = 0;
  std::uint32_t tag = 0;
  const Stream* stream = nullptr;
};

/// One rank's end of a transport between `size()` ranks. Collectives block until this rank's part is done.
/// One thread at a time may call them, and all ranks must make the same calls in the same order with equal
/// arguments. All calls throw TimeoutError at the deadline, and DistributedError if a peer is gone. After an
/// exception the backend cannot be used any more.
class Backend {
 public:
  virtual ~Backend() = default;
  virtual const char* name() const = 0;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  /// The device of the memory that is passed to all calls. For a CUDA device, calls enqueue their work on
  /// current_stream(device()) and return, except barrier(), which waits. Failures of enqueued work are
  /// reported by poll().
  virtual Device device() const { return kCPU; }
  /// Throws DistributedError if enqueued work has failed or was aborted. May be called by any thread.
  virtual void poll() {}

  /// Reduces `data` over all ranks, in place. All ranks get the same bits.
  virtual void all_reduce(void* data, std::int64_t count, DType dtype, ReduceOp op, Deadline deadline) = 0;
  /// Reduces `data` over all ranks, in place at the root. On other ranks `data` is unspecified afterwards.
  virtual void reduce(void* data, std::int64_t count, DType dtype, ReduceOp op, int root,
                      Deadline deadline) = 0;
  /// Reduces the `in` of each part over all ranks. Its `out` receives the block of this rank. The ranks pass
  /// the same number of parts, of equal counts, dtypes and rows; pitches may differ. No part is empty.
  virtual void reduce_scatter(std::span<const ScatterPart> parts, ReduceOp op, Deadline deadline) = 0;
  void reduce_scatter(const void* in, void* out, std::int64_t count, DType dtype, ReduceOp op,
                      Deadline deadline) {
    const ScatterPart part{in, out, count, dtype, static_cast<std::size_t>(count) * dtype_size(dtype)};
    reduce_scatter(std::span(&part, 1), op, deadline);
  }
  virtual void broadcast(void* data, std::size_t bytes, int root, Deadline deadline) = 0;
  /// Copies the `in` of each part to block r of its `out` on all ranks, where r is the rank that passes `in`.
  /// The ranks pass the same number of parts, of equal sizes and rows; pitches may differ. No part is empty.
  virtual void all_gather(std::span<const GatherPart> parts, Deadline deadline) = 0;
  void all_gather(const void* in, void* out, std::size_t bytes, Deadline deadline) {
    const GatherPart part{in, out, bytes, bytes};
    all_gather(std::span(&part, 1), deadline);
  }
  /// Like all_gather(), but only the root receives the bytes. `out` is null on other ranks.
  virtual void gather(const void* in, void* out, std::size_t bytes, int root, Deadline deadline) = 0;
  /// Copies block i of the root's `in` to `out` of rank i. A block has `bytes` bytes. `in` is null on other
  /// ranks.
  virtual void scatter(const void* in, void* out, std::size_t bytes, int root, Deadline deadline) = 0;
  /// Sends `in` of part i to rank i, and receives `out` of part i from rank i. There are size() parts. Both
  /// ends of an exchange pass the same number of bytes; rows and pitches may differ. No memory overlaps.
  virtual void all_to_all(std::span<const ExchangePart> parts, Deadline deadline) = 0;
  /// The same for blocks of `bytes` bytes, which lie side by side.
  void all_to_all(const void* in, void* out, std::size_t bytes, Deadline deadline);
  virtual void barrier(Deadline deadline) = 0;
  /// Point-to-point messages. Several threads may call at once, also during a collective, if their peers or
  /// tags differ. Messages with the same peer and tag arrive in order. send() may return before the message
  /// is received.
  virtual void send(const void* data, std::size_t bytes, int peer, std::uint32_t tag, Deadline deadline) = 0;
  virtual void recv(void* data, std::size_t bytes, int peer, std::uint32_t tag, Deadline deadline) = 0;
  /// Messages that begin together, each on its own stream. Only for transports of a CUDA device, on which
  /// send() and recv() do not wait: by default they are called one after another.
  virtual void exchange(std::span<const MessagePart> messages, Deadline deadline);

  /// Makes current calls on this rank, and on peers that wait for it, throw DistributedError with `why` soon.
  /// Later calls throw at once. May be called by any thread, repeatedly.
  virtual void abort(const std::string& why) noexcept = 0;
  /// Makes a backend for some of the ranks, including this one. All of these ranks must call it. Their new
  /// numbers follow the order of `ranks`. `store` belongs to the new backend alone.
  virtual std::shared_ptr<Backend> split(const std::vector<int>& ranks, const std::shared_ptr<Store>& store,
                                         Deadline deadline) = 0;
};

/// Backends for ranks that are threads of one process: element i belongs to rank i. Sums are formed in order
/// of rank.
std::vector<std::shared_ptr<Backend>> local_backends(int size);
/// A backend between processes, with Gloo. `store` belongs to this group alone. Ranks of several hosts use
/// TCP. Ranks of one host use Unix sockets, and reduce, broadcast and gather through shared memory. They use
/// the sockets for that too if `shared_memory` is false or TAPESTRY_SHARED_MEMORY is 0 on any of them, or if
/// the system provides no shared memory. Rank 0 then prints the reason on standard error, unless shared
/// memory is switched off on rank 0 itself. Sums are formed in order of rank, as in the local backend. Throws
/// DistributedError if the library was built without Gloo.
std::shared_ptr<Backend> gloo_backend(const std::shared_ptr<Store>& store, int rank, int size,
                                      Milliseconds timeout, bool shared_memory = true);

/// A backend between GPUs, one per rank, over NCCL. `store` belongs to this group alone. The order of
/// additions and the rounding of f16 and bf16 are those of NCCL. NCCL is opened at run time: see
/// tapestry/core/cuda/libraries.h. Throws DistributedError if NCCL is not found or too old, or if the library
/// was built without nccl.h; DeviceError unless `device` is an existing CUDA device; TimeoutError if a rank
/// does not come.
std::shared_ptr<Backend> nccl_backend(const std::shared_ptr<Store>& store, int rank, int size, Device device,
                                      Milliseconds timeout);
/// True if nccl.h was found when the library was built. NCCL itself may still be missing at run time.
bool built_with_nccl();

/// The arithmetic of all_reduce on host memory: out[i] = values[0][i] op values[1][i] op ..., in this order.
/// Each intermediate result is rounded to `dtype`, and a mean is divided by `size`. `out` may be one of the
/// `size` values. Runs in the calling thread. Throws TypeError for the mean of integers.
void reduce_in_order(void* out, const void* const* values, int size, std::int64_t count, DType dtype,
                     ReduceOp op);

}  // namespace tapestry::distributed
