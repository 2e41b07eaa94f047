#pragma once
// Process groups: collectives and messages between the ranks of a job.
//
//   auto world = distributed::init_process_group();             // or distributed::run_local_ranks(2, ...)
//   world->all_reduce(loss, distributed::ReduceOp::mean);       // returns when `loss` holds the mean
//   distributed::Work work = world->all_reduce(gradients);      // returns at once: PyTorch's async_op=True
//   work.wait();
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tapestry/core/source_location.h"
#include "tapestry/core/tensor_fwd.h"
#include "tapestry/distributed/comm/backend.h"
#include "tapestry/distributed/comm/recorder.h"

namespace tapestry::distributed {

struct P2POp;  // p2p_op.h

struct GroupOptions {
  /// A collective that takes longer fails on every rank. Zero means TAPESTRY_TIMEOUT_S, or 300 s if that is
  /// not set.
  Milliseconds timeout{0};
  /// A collective that takes longer prints a warning on standard error, once. Zero means 60 s or a fifth of
  /// the timeout, whichever is less.
  Milliseconds warn_after{0};
  /// Whether ranks compare their calls before each collective. If they do, ranks that are in different calls
  /// get an error at once that shows both calls. If they do not, such ranks hang until the timeout, and the
  /// error shows where every rank waits. Must be the same on all ranks. If nullopt,
  /// TAPESTRY_CHECK_COLLECTIVES (0 or 1) decides. If that is not set either, groups of host transports
  /// compare (64 bytes from each rank over the transport), and groups over NCCL do not, because each
  /// comparison is a round trip to the store.
  std::optional<bool> check;
  /// Over NCCL: whether each group has its own stream and queue. If false, all groups of a rank share them,
  /// so their collectives run one after the other. Two collectives at once can deadlock over NCCL before
  /// version 2.26, unless the GPU has room for both. Must be the same on all ranks.
  bool own_streams = false;
};

/// A handle to a collective in flight. It can be copied. Destroying all copies neither cancels the collective
/// nor waits for it; see ScopedWork.
class Work {
 public:
  struct State;
  Work() = default;
  explicit Work(std::shared_ptr<State> state) : state_(std::move(state)) {}

  /// Returns when this rank's part is done and its tensors hold the result. For tensors on a CUDA device,
  /// only this thread's current stream waits, not the host: work that is enqueued on it later sees the
  /// result. For a batch of messages over NCCL the host waits until the GPU has finished. A failure on the
  /// GPU is thrown by this or a later call of the group. Throws TimeoutError or DistributedError, whose text
  /// has a table of where all ranks are. The wait is bounded by the group's timeout.
  void wait() const;
  /// Like wait(), but throws TimeoutError after `timeout`. The collective then continues.
  void wait(Milliseconds timeout) const;
  /// True if wait() would return at once and, on a CUDA device, the GPU has finished.
  bool done() const;
  /// When the transport began and finished this collective; time_point{} before that.
  Clock::time_point started() const;
  Clock::time_point finished() const;
  const std::shared_ptr<State>& state() const { return state_; }  ///< for the implementation

 protected:
  std::shared_ptr<State> state_;
};

/// What the calls of a group return: a Work that waits when it is destroyed, unless wait() was called on it
/// or on a copy. So a call whose result is dropped returns when its tensors hold the result, as in PyTorch,
/// and throws what wait() throws. A call whose result is kept in a Work returns at once. Does not wait while
/// an exception unwinds the stack.
class ScopedWork : public Work {
 public:
  using Work::Work;
  ScopedWork(const ScopedWork&) = default;
  ScopedWork(ScopedWork&&) noexcept = default;
  ScopedWork& operator=(ScopedWork other) noexcept {  // the caller destroys `other`, which waits
    state_.swap(other.state_);
    return *this;
  }
  ~ScopedWork() noexcept(false);

 private:
  int exceptions_ = std::uncaught_exceptions();  // when the call was made
};

/// What a call may be given beside its arguments: a name, which appears in error messages and in the
/// recorder, or the result of after().
struct CallOptions {
  CallOptions() = default;
  CallOptions(std::string_view name_) : name(name_) {}    // NOLINT: a name is a CallOptions
  CallOptions(const char* name_) : name(name_) {}         // NOLINT
  CallOptions(const std::string& name_) : name(name_) {}  // NOLINT

  std::string_view name;
  std::vector<std::shared_ptr<Work::State>> after;
};

/// Options of a call that reads or writes a tensor which earlier calls of other groups write. The call starts
/// when they are done, and the caller does not wait:
///
///   const Work part = shard->reduce_scatter(mine, gradients);
///   const Work sum = replicate->all_reduce(mine, ReduceOp::sum, after(part, "gradients"));
///
/// If one of `works` has failed, the call fails with the same error. A Work of the same group need not be
/// named. Works without a call count as done.
CallOptions after(const Work& work, std::string_view name = {});
CallOptions after(std::vector<Work> works, std::string_view name = {});

/// One rank's handle to a group of ranks. Thread-safe. A call returns at once if its result is kept in a
/// Work, and otherwise when it is done (ScopedWork). The collectives of a group run one at a time in the
/// order of the calls. Those of different groups run at the same time (over NCCL only if
/// GroupOptions::own_streams is set), so a call that needs another group's result must come after() it, or
/// behind its wait(). Tensors may have any shape, strides and dtype, and may be empty. They must not be
/// changed until the Work is done. A call with invalid arguments (undefined tensor, wrong dtype or size, root
/// out of range) throws ValueError, TypeError or IndexError at once, and starts nothing. `options` and `site`
/// appear in error messages and in the recorder.
///
/// **The order of calls.** Ranks that wait for one another in a circle hang. To prevent this, all ranks make
/// their collectives in one order: that of a list of the collectives of all groups, of which each rank makes
/// those of its own groups. A program that all ranks run alike does so. What a rank calls must not depend on
/// its data. Then any two ranks call the collectives of the groups that they share in one order, and this is
/// checked: an inversion is an error that names both calls and their places, also if nothing would hang. A
/// group over a host transport that compares calls (GroupOptions::check) checks this in every call. Other
/// groups check it in each 1024th call and in check_order(). Messages have no part in this.
///
/// A failure on one rank (a timeout, a lost peer, ranks in different calls) makes all groups of the same
/// world fail on all ranks, also on ranks that are not in a call. Calls in flight and later calls throw the
/// first error.
class ProcessGroup {
 public:
  using Site = SourceLocation;

  virtual ~ProcessGroup() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  /// "world", or the name of a sub-group.
  virtual const std::string& name() const = 0;
  virtual std::string backend() const = 0;
  virtual Milliseconds timeout() const = 0;
  virtual const Recorder& recorder() const = 0;
  /// A store shared by this group's ranks, for small and rare data.
  virtual Store& store() = 0;

  /// Reduces `tensor` over all ranks, in place. All ranks get the same bits. `mean` of a dtype that is not
  /// floating throws TypeError.
  virtual ScopedWork all_reduce(const Tensor& tensor, ReduceOp op = ReduceOp::sum,
                                const CallOptions& options = {}, Site site = Site::current()) = 0;
  /// Copies the `tensor` of `root` to the tensors of all other ranks.
  virtual ScopedWork broadcast(const Tensor& tensor, int root = 0, const CallOptions& options = {},
                               Site site = Site::current()) = 0;
  /// Reduces `tensor` over all ranks, in place at the root. The tensors of other ranks do not change.
  virtual ScopedWork reduce(const Tensor& tensor, int root = 0, ReduceOp op = ReduceOp::sum,
                            const CallOptions& options = {}, Site site = Site::current()) = 0;
  /// `output` has size() times as many elements as `input`, and receives the inputs in order of rank.
  virtual ScopedWork all_gather(const Tensor& output, const Tensor& input, const CallOptions& options = {},
                                Site site = Site::current()) = 0;
  /// Gathers the inputs along dimension `dim`, which may be negative: `output` has the shape of `input`, but
  /// size() times as many elements in that dimension. On host transports the pieces go to their places in
  /// `output` without a copy of it; over NCCL the GPU copies them there from a buffer. Throws ValueError if
  /// the shapes do not fit, and IndexError if there is no such dimension.
  virtual ScopedWork all_gather(const Tensor& output, const Tensor& input, int dim,
                                const CallOptions& options = {}, Site site = Site::current()) = 0;
  /// Gathers each of the `inputs` into the output of the same index, in one collective, as PyTorch's
  /// coalesced collectives do. The pairs may have different dtypes, and any may be empty. Empty lists are a
  /// collective that moves nothing. inputs[i] may be this rank's block of outputs[i];
  /// then nothing is copied for it. Outputs must not share memory with one another. Throws ValueError if the
  /// lists have different lengths.
  virtual ScopedWork all_gather(const std::vector<Tensor>& outputs, const std::vector<Tensor>& inputs,
                                const CallOptions& options = {}, Site site = Site::current()) = 0;
  /// Reduces `input`, which has size() times as many elements as `output`, over all ranks. `output` receives
  /// this rank's part of the result.
  virtual ScopedWork reduce_scatter(const Tensor& output, const Tensor& input, ReduceOp op = ReduceOp::sum,
                                    const CallOptions& options = {}, Site site = Site::current()) = 0;
  /// Reduces `input` over all ranks and divides the result along dimension `dim`, as all_gather() along a
  /// dimension puts it together. Throws what that throws.
  virtual ScopedWork reduce_scatter(const Tensor& output, const Tensor& input, int dim,
                                    ReduceOp op = ReduceOp::sum, const CallOptions& options = {},
                                    Site site = Site::current()) = 0;
  /// Reduces each of the `inputs` into the output of the same index, in one collective. The pairs may have
  /// different dtypes, and any may be empty. On host transports the outputs have the same bits as the parts
  /// of an all_reduce(). outputs[i] may be this rank's block of inputs[i]. Throws ValueError if the lists
  /// have different lengths, and TypeError if `op` is not defined for a dtype.
  virtual ScopedWork reduce_scatter(const std::vector<Tensor>& outputs, const std::vector<Tensor>& inputs,
                                    ReduceOp op = ReduceOp::sum, const CallOptions& options = {},
                                    Site site = Site::current()) = 0;
  /// Like all_gather(), but only `root` receives the inputs. Other ranks ignore `output`.
  virtual ScopedWork gather(const Tensor& output, const Tensor& input, int root = 0,
                            const CallOptions& options = {}, Site site = Site::current()) = 0;
  /// Sends part i of the root's `input`, which has size() times as many elements as `output`, to the `output`
  /// of rank i. Other ranks ignore `input`.
  virtual ScopedWork scatter(const Tensor& output, const Tensor& input, int root = 0,
                             const CallOptions& options = {}, Site site = Site::current()) = 0;
  /// Sends part i of `input` to rank i, and receives part i of `output` from rank i. Both tensors have size()
  /// equal parts.
  virtual ScopedWork all_to_all(const Tensor& output, const Tensor& input, const CallOptions& options = {},
                                Site site = Site::current()) = 0;
  /// Sends inputs[i] to rank i, and receives outputs[i] from rank i; both lists have size() tensors. Parts
  /// may have any sizes and dtypes, and any may be empty, but a part must have as many elements and the same
  /// dtype on both of its ends. A group that compares calls (GroupOptions::check) checks this, and its error
  /// names both ranks and both sizes. Outputs must not share memory with one another. Throws ValueError or
  /// TypeError if the lists have other lengths, or if this rank's own part does not fit.
  virtual ScopedWork all_to_all(const std::vector<Tensor>& outputs, const std::vector<Tensor>& inputs,
                                const CallOptions& options = {}, Site site = Site::current()) = 0;
  virtual ScopedWork barrier(const CallOptions& options = {}, Site site = Site::current()) = 0;
  /// A collective that checks the order of calls so far (see above). Needed only over NCCL and in groups that
  /// do not compare calls, once a step.
  virtual ScopedWork check_order(Site site = Site::current()) = 0;
  /// Messages do not wait for collectives, nor for messages of another direction, peer or tag. Each
  /// combination of direction, peer and tag has its own thread, so use few tags. Messages with the same peer
  /// and tag arrive in order. A header with dtype and shape precedes each message, and a mismatch throws a
  /// DistributedError that shows both; over NCCL this needs GroupOptions::check.
  virtual ScopedWork send(const Tensor& tensor, int peer, std::uint32_t tag = 0,
                          const CallOptions& options = {}, Site site = Site::current()) = 0;
  virtual ScopedWork recv(const Tensor& tensor, int peer, std::uint32_t tag = 0,
                          const CallOptions& options = {}, Site site = Site::current()) = 0;
  /// Makes several messages in one call, as PyTorch's batch_isend_irecv() does:
  ///
  ///   const Work work = group->batch_isend_irecv({P2POp::send(mine, next), P2POp::recv(other, previous)});
  ///
  /// The Work is done when all of them are. If one is invalid, this throws and none begins. Each is matched
  /// like a message of send() or recv(): the peer may make its end alone or in a batch. Those with the same
  /// direction, peer and tag arrive in the order of the list. Others do not wait for one another on host
  /// transports. Over NCCL a batch is one group of calls: it begins when the earlier messages of each of its
  /// combinations of direction, peer and tag are done, and later ones of these begin when it is done.
  ///
  /// Over NCCL the batch sends nothing before the peers of all its messages have begun theirs: it needs the
  /// communicators of all of them, and if calls are compared, the headers of what it receives. So let both
  /// ends be batches, or order them as single messages must be. A peer that first receives alone from this
  /// batch, waits, and then sends to it hangs until the timeout.
  virtual ScopedWork batch_isend_irecv(const std::vector<P2POp>& messages, const CallOptions& options = {},
                                       Site site = Site::current()) = 0;

  /// Makes a group of some of this group's ranks, which are numbered in the order given. It is a collective
  /// of this group: all ranks of this group must call it. It blocks. Returns null on ranks outside of the new
  /// group. Throws ValueError if `ranks` is empty or has duplicates, and IndexError if a rank does not exist.
  virtual std::shared_ptr<ProcessGroup> new_group(const std::vector<int>& ranks,
                                                  Site site = Site::current()) = 0;
  /// Divides this group into several at once, as PyTorch's split_group() does. Each list has the ranks of one
  /// new group, which are numbered in the order given; a rank may be in one list at most. All ranks of this
  /// group must pass the same lists, and it blocks. Returns this rank's new group, or null if no list has
  /// this rank. `name` is the name of this rank's new group in messages; if it is empty, a number is. Throws
  /// what new_group() throws, and ValueError if there is no list or a rank is in two.
  virtual std::shared_ptr<ProcessGroup> split_group(const std::vector<std::vector<int>>& lists,
                                                    std::string_view name = {},
                                                    Site site = Site::current()) = 0;

  /// Runs `task` on the host after the collectives of this group that were called so far, with the caller's
  /// context. wait() rethrows its exception, which does not affect the group. A collective that comes
  /// after() a task that failed makes the groups of the world fail, because the other ranks wait for it.
  virtual ScopedWork enqueue(std::function<void()> task, const CallOptions& options = {}) = 0;
  /// Makes the groups of the world fail on all ranks, with `why` and a table of where all ranks are. Blocks
  /// until the table is complete, at most five seconds.
  virtual void abort(const std::string& why) noexcept = 0;
};

/// Makes a group over a transport. `store` must be empty and shared by these ranks alone; it serves the
/// diagnosis of failures and sub-groups. The group's destructor waits (bounded) for collectives in flight,
/// and tells the other ranks that this rank has left. Throws ValueError if a pointer is null.
std::shared_ptr<ProcessGroup> make_process_group(std::shared_ptr<Backend> backend,
                                                 std::shared_ptr<Store> store,
                                                 const GroupOptions& options = {},
                                                 std::string name = "world");

/// Runs fn(group) in `size` threads of this process, one per rank, over the local backend. Each rank has one
/// compute thread. An exception on one rank aborts the group, and is rethrown after all ranks have ended.
/// Throws ValueError if `size` is less than 1.
void run_local_ranks(int size, const std::function<void(const std::shared_ptr<ProcessGroup>&)>& fn,
                     const GroupOptions& options = {});

}  // namespace tapestry::distributed
