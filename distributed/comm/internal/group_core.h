#pragma once
// What the calls of a group use. Calls in flight keep it alive when the handle of the group is gone.
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "tapestry/core/stream.h"
#include "tapestry/distributed/comm/internal/agreement.h"
#include "tapestry/distributed/comm/internal/descriptor.h"
#include "tapestry/distributed/comm/internal/diagnosis.h"
#include "tapestry/distributed/comm/internal/fifo.h"
#include "tapestry/distributed/comm/internal/post_order.h"
#include "tapestry/distributed/comm/internal/work.h"

namespace tapestry::distributed {

using WorkStates = std::vector<std::shared_ptr<Work::State>>;

/// Runs calls one at a time. Guarded by GroupMember::order.
struct CallQueue {
  // By the index of the CUDA device. Declared before `fifo`, because they must outlive its thread.
  std::map<int, ExclusiveStream> streams;
  std::unique_ptr<Fifo> fifo;  // starts with the first call that it runs

  Stream stream_on(Device device) { return streams.try_emplace(device.index, device, true).first->second; }
};

/// The state that all groups of one rank share.
struct GroupMember {
  GroupMember(const std::shared_ptr<Store>& store, int rank_, int size, const GroupOptions& options)
      : rank(rank_),
        posts(std::make_shared<PostOrder>(rank, size, recorder)),
        diagnosis(store, rank, size, options, recorder, posts) {}

  const int rank;
  const std::shared_ptr<Recorder> recorder = std::make_shared<Recorder>();
  const std::shared_ptr<PostOrder> posts;
  Diagnosis diagnosis;
  std::mutex order;  // makes numbering and queueing of a call one atomic step
  int open = 0;      // the number of groups that exist; guarded by `order`
  // Over GPUs, the queue of all groups, unless GroupOptions::own_streams is set. On two streams, two
  // communicators could deadlock: each may occupy resources of the GPU that the other one needs.
  std::shared_ptr<CallQueue> shared;
  // Waits for the GPU's part of each call. Null if the transport uses host memory.
  std::unique_ptr<Fifo> completions;

  std::shared_ptr<CallQueue> new_queue() const { return shared ? shared : std::make_shared<CallQueue>(); }
};

/// The work of a recorded call. The second argument is its deadline.
using CallBody = std::function<void(const CollectiveRecord&, Deadline)>;
/// Returns a function that runs `body` on the stream of `work`, between work->begin() and work->end().
CallBody beside(const std::shared_ptr<DeviceWork>& work, CallBody body);

/// The state of a group that tasks of its queue use.
struct GroupCore {
  std::shared_ptr<GroupMember> member;
  std::shared_ptr<Backend> backend;
  std::shared_ptr<Store> store;
  GroupOptions options;
  std::string name;
  std::string key;             // unlike the name, no other group of the world has it
  std::vector<int> ranks;      // the ranks of the group, as numbered in the world
  bool part_of_world = false;  // true for a sub-group
  std::uint64_t hash = 0;      // of the key
  std::optional<Agreement> agreement;
  std::shared_ptr<CallQueue> queue;
  std::mutex alone;          // held by a call that runs in the caller's thread
  std::uint64_t groups = 0;  // only calls of new_group() use it, which run one at a time

  // member->order guards the members from here to `channels`.
  std::uint64_t sequence = 0;
  std::shared_ptr<Work::State> last;  // the last call in the queue
  struct Channel {
    // `stream` is declared before `fifo`, because it must outlive the thread of `fifo`.
    std::optional<ExclusiveStream> stream;
    std::unique_ptr<Fifo> fifo;
    std::uint64_t sequence = 0;
    std::shared_ptr<Work::State> last;  // the last message
  };
  std::map<std::tuple<int, Op, std::uint32_t>, Channel> channels;  // by peer, direction and tag

  bool compares() const { return *options.check && backend->size() > 1; }
  bool on_gpu() const { return backend->device().is_cuda(); }

  /// Called when name, key, ranks, store and backend are set.
  void open();

  /// Compares this call with those of the other ranks. A group that does not compare calls compares the order
  /// of calls now and then.
  void agree(const CollectiveRecord& record, Deadline deadline);

  // True if each message is preceded by a header with its dtype and shape. Groups over GPUs send headers
  // through the store, and only if they compare calls.
  bool sends_headers() const { return !on_gpu() || compares(); }
  std::string header_key(int from, int to, std::uint32_t tag, std::uint64_t sequence) const {
    return concat({"message/", from, "-", to, "/", tag, "/", sequence});
  }
  void send_header(const MessageDescriptor& header, int peer, std::uint32_t tag, Deadline deadline);
  /// `expected` is the header that this rank expects.
  MessageDescriptor receive_header(const MessageDescriptor& expected, int peer, std::uint32_t tag,
                                   Deadline deadline);

  /// Why a call cannot run: the groups have failed, or an earlier call that it needs has failed.
  struct Obstacle {
    std::shared_ptr<const Failure> failure = nullptr;
    std::exception_ptr error = nullptr;
  };

  /// Waits until the calls in `after` are done.
  Obstacle await(WorkStates& after, const Work::State& state) const;

  /// Makes the groups fail, because the other ranks wait for a call that this rank cannot make.
  void fail_for(const Obstacle& obstacle, const CollectiveRecord& record) const;

  /// Runs `body` as the recorded call `record` after the calls in `after`, and calls state->finish() whether
  /// it succeeds or fails. If the call enqueued work on a GPU, `completions` waits for the GPU and calls
  /// state->finish() again.
  void perform(const CollectiveRecord& record, std::uint64_t ticket, WorkStates& after,
               const std::shared_ptr<Work::State>& state, CallBody& body,
               const std::shared_ptr<GroupCore>& self);

  /// Runs `body`. If it throws, makes the groups fail and returns why.
  std::shared_ptr<const Failure> attempt(const CollectiveRecord& record, const CallBody& body,
                                         Clock::time_point start);
};

}  // namespace tapestry::distributed
