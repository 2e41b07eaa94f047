#pragma once
// Collectives between the ranks of a job.
//
//   auto world = distributed::init_process_group();               // or distributed::run_local_ranks(2, ...)
//   world->all_reduce(loss, distributed::ReduceOp::mean).wait();
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tapestry/core/source_location.h"
#include "tapestry/core/tensor.h"
#include "tapestry/distributed/comm/backend.h"
#include "tapestry/distributed/comm/recorder.h"

namespace tapestry::distributed {

struct GroupOptions {
  /// A collective that has not completed by then is an error on every rank. Zero: TAPESTRY_TIMEOUT_S, else
  /// 300 s.
  Milliseconds timeout{0};
  /// A warning on standard error, once for each collective. Zero: 60 s, or a fifth of the timeout if that is
  /// less.
  Milliseconds warn_after{0};
  /// Whether ranks compare their calls before each collective. If they do, ranks that are in different calls
  /// get an error at once that shows both calls. If they do not, such ranks hang until the timeout, and the
  /// error shows where every rank waits. Must be the same on all ranks. If nullopt,
  /// TAPESTRY_CHECK_COLLECTIVES (0 or 1) decides. If that is not set either, groups of host transports
  /// compare (64 bytes from each rank over the transport), and groups over NCCL do not, because each
  /// comparison is a round trip to the store.
  std::optional<bool> check;
};

/// One collective in flight. A copyable handle; dropping all copies cancels nothing.
class Work {
 public:
  struct State;
  Work() = default;
  explicit Work(std::shared_ptr<State> state) : state_(std::move(state)) {}

  /// Returns when this rank's part is done and its tensors hold the result. On a CUDA device that is so for
  /// what this thread's current stream is given from then on: the host does not wait for the GPU, and a
  /// failure there is thrown by this or a later call of the group. Rethrows what went wrong: TimeoutError,
  /// DistributedError with the table of all ranks. Bounded by the group's timeout.
  void wait() const;
  /// TimeoutError after `timeout`; the collective goes on.
  void wait(Milliseconds timeout) const;
  bool done() const;
  /// When the transport began and ended with it; time_point{} before.
  Clock::time_point started() const;
  Clock::time_point finished() const;

 private:
  std::shared_ptr<State> state_;
};

/// One rank's handle on a group of ranks. Calls return at once; collectives of all groups of a rank are
/// executed one at a time in the calling order, which must be the same on all ranks. Tensors may have any
/// shape, strides and dtype, also no elements; they must not be changed until the Work is done. A call that
/// does not fit (undefined tensor, dtype, root out of range, sizes) throws ValueError, TypeError or
/// IndexError at once and posts nothing. `name` and `site` go into the record. Thread-safe.
///
/// What fails on one rank (a timeout, a peer that is gone, ranks in different calls) fails all groups made
/// from the same world, on all its ranks, also where a rank only computes: calls in flight and later ones
/// throw the first error.
class ProcessGroup {
 public:
  using Site = SourceLocation;

  virtual ~ProcessGroup() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  /// "world", or a sub-group's.
  virtual const std::string& name() const = 0;
  virtual std::string backend() const = 0;
  virtual Milliseconds timeout() const = 0;
  virtual const Recorder& recorder() const = 0;
  /// Shared by this group's ranks; for what is small and rare.
  virtual Store& store() = 0;

  /// In place; the same bits on every rank. `mean` takes floating dtypes only (TypeError).
  virtual Work all_reduce(const Tensor& tensor, ReduceOp op = ReduceOp::sum, std::string_view name = {},
                          Site site = Site::current()) = 0;
  /// In place, from `root` to all.
  virtual Work broadcast(const Tensor& tensor, int root = 0, std::string_view name = {},
                         Site site = Site::current()) = 0;
  /// In place at the root; tensors of the others are unchanged.
  virtual Work reduce(const Tensor& tensor, int root = 0, ReduceOp op = ReduceOp::sum,
                      std::string_view name = {}, Site site = Site::current()) = 0;
  /// `output` has size() times the elements of `input`, rank by rank.
  virtual Work all_gather(const Tensor& output, const Tensor& input, std::string_view name = {},
                          Site site = Site::current()) = 0;
  /// `input` has size() times the elements of `output`, which receives this rank's part of the reduction.
  virtual Work reduce_scatter(const Tensor& output, const Tensor& input, ReduceOp op = ReduceOp::sum,
                              std::string_view name = {}, Site site = Site::current()) = 0;
  /// `output` as in all_gather, looked at by the root only.
  virtual Work gather(const Tensor& output, const Tensor& input, int root = 0, std::string_view name = {},
                      Site site = Site::current()) = 0;
  /// `input` has size() times the elements of `output`; looked at by the root only.
  virtual Work scatter(const Tensor& output, const Tensor& input, int root = 0, std::string_view name = {},
                       Site site = Site::current()) = 0;
  /// Both have size() equal parts; part i of `input` goes to rank i.
  virtual Work all_to_all(const Tensor& output, const Tensor& input, std::string_view name = {},
                          Site site = Site::current()) = 0;
  virtual Work barrier(std::string_view name = {}, Site site = Site::current()) = 0;
  /// Not in the FIFO: a send and a receive, and messages of different peers or tags, do not wait for one
  /// another: each pair of a peer and a tag has a thread, so let tags be few. The header that travels first
  /// carries dtype and shape; what does not match is an error that shows both.
  virtual Work send(const Tensor& tensor, int peer, std::uint32_t tag = 0, std::string_view name = {},
                    Site site = Site::current()) = 0;
  virtual Work recv(const Tensor& tensor, int peer, std::uint32_t tag = 0, std::string_view name = {},
                    Site site = Site::current()) = 0;

  /// A group of some of this one's ranks, numbered in the order given. A collective call of all ranks of this
  /// group, which blocks; null on those outside. ValueError for no rank or one named twice, IndexError for
  /// one that there is not.
  virtual std::shared_ptr<ProcessGroup> new_group(const std::vector<int>& ranks,
                                                  Site site = Site::current()) = 0;

  /// Queues host work of this rank behind the collectives posted so far (a strategy's copies, an injected
  /// delay), with the caller's context. What it throws is rethrown by wait(), and fails nothing else.
  virtual Work enqueue(std::function<void()> task, std::string_view name = {}) = 0;
  /// Makes everything in flight fail, here and at all other ranks, with `why` and the table of where they
  /// are. Blocks until that is made, at most five seconds.
  virtual void abort(const std::string& why) noexcept = 0;
};

/// A group over a transport. `store` is for diagnosis and sub-groups, shared by the same ranks alone, and
/// holds nothing yet. The destructor waits (bounded) for what was posted; ranks that still need this one are
/// told that it has left. ValueError for null.
std::shared_ptr<ProcessGroup> make_process_group(std::shared_ptr<Backend> backend,
                                                 std::shared_ptr<Store> store,
                                                 const GroupOptions& options = {},
                                                 std::string name = "world");

/// Runs fn(group) in `size` threads of this process, one a rank, over the local backend; each has one compute
/// thread. An exception in one aborts the group; the first one is rethrown after all have ended. ValueError
/// for a size below 1.
void run_local_ranks(int size, const std::function<void(const std::shared_ptr<ProcessGroup>&)>& fn,
                     const GroupOptions& options = {});

}  // namespace tapestry::distributed
