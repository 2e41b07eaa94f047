#pragma once
// Sends and receives messages between the stages of two ranks.
//
// The receiver does not know the shapes in advance, because a stage may return other shapes for each
// micro-batch. So a header of fixed size precedes the tensors and describes them. Neither side blocks the
// other: the sender posts its sends and waits for them later, and a thread of the receiver reads headers and
// posts receives while the stage computes. So the next messages are transferred meanwhile.
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "tapestry/distributed/comm/process_group.h"
#include "tapestry/distributed/pipeline/internal/stage_executor.h"

namespace tapestry::distributed {

/// The largest number of tensors in one message. A message of outputs has one less, because the message of
/// their gradients may carry the loss too.
inline constexpr int kMaxMessageTensors = 33;
/// How many messages may be received but not yet taken, and how many sent but not yet received. The limit
/// bounds memory. Two are enough: no schedule would wait less without a limit.
inline constexpr std::size_t kMaxQueuedMessages = 2;

/// Identifies a message. Both sides know which one comes next and compare.
struct MessageId {
  enum class Kind : std::uint8_t { outputs, gradients } kind = Kind::outputs;
  int micro_batch = 0;
  std::uint64_t pass = 0;
  friend bool operator==(const MessageId&, const MessageId&) = default;
  /// "the gradients of micro-batch 3 in pass 7"
  std::string str() const;
};

/// The fixed-size header that precedes a message. It describes every tensor and marks undefined ones.
class MessageHeader {
 public:
  MessageHeader() = default;
  /// Throws ValueError if a message cannot carry this many tensors.
  static void check_count(MessageId::Kind kind, std::size_t tensors);
  /// A message can carry placements along this many axes.
  static constexpr std::size_t kMaxAxes = 11;
  /// Throws ValueError as check_count() does. MessageSender::send() explains `rng_offset`.
  MessageHeader(const MessageId& id, const Message& message, std::uint64_t rng_offset);
  /// Converts the header from and to the bytes that are sent. bytes() returns a copy.
  explicit MessageHeader(const Tensor& bytes);
  Tensor bytes() const;
  static Tensor empty_bytes();

  /// Throws DistributedError if the bytes are not a valid header, or belong to another message.
  void check_matches(const MessageId& expected, int peer) const;
  /// Allocates the tensors that will be received, with the memory formats of those that were sent.
  Message allocate_message(Device device) const;
  std::uint64_t rng_offset() const { return rng_offset_; }

 private:
  struct Entry {
    std::uint8_t dtype = 0, ndim = 0, defined = 0, requires_grad = 0, channels_last = 0;
    std::uint8_t placements[kMaxAxes] = {};  // 0: none; else Placement::Kind + 1, and of sharded + dim()
    std::int64_t sizes[kMaxDims] = {};
  };
  std::uint32_t magic_ = 0;
  std::int32_t micro_batch_ = 0;
  std::uint64_t pass_ = 0, rng_offset_ = 0;
  std::uint8_t kind_ = 0, count_ = 0;
  [[maybe_unused]] std::uint8_t reserved_[6] = {};
  Entry entries_[kMaxMessageTensors];

  MessageId id() const;
};

/// Sends messages to one peer.
class MessageSender {
 public:
  MessageSender(ProcessGroup& group, int peer, std::uint32_t tag) : group_(group), peer_(peer), tag_(tag) {}

  /// Posts the message. Waits until at most kMaxQueuedMessages earlier messages are in flight. The header
  /// carries `rng_offset`, the largest generator position that this stage and the stages behind it have
  /// reached.
  void send(const MessageId& id, const Message& message, std::uint64_t rng_offset);
  /// Waits until the peer has received all messages.
  void finish();
  /// The bytes of all tensors sent so far.
  std::int64_t bytes() const { return bytes_; }

 private:
  void wait_for_first();

  ProcessGroup& group_;
  const int peer_;
  const std::uint32_t tag_;
  std::int64_t bytes_ = 0;
  std::deque<std::vector<Work>> sent_;  // by message
};

/// Receives the messages `expected` from one peer, in this order. Before it is destroyed, either all messages
/// must have been taken or the group must have failed.
class MessageReceiver {
 public:
  MessageReceiver(ProcessGroup& group, int peer, std::uint32_t tag, Device device,
                  std::vector<MessageId> expected);
  ~MessageReceiver();
  MessageReceiver(const MessageReceiver&) = delete;
  MessageReceiver& operator=(const MessageReceiver&) = delete;

  /// Waits for the next message and returns it. On a CUDA device the tensors are ready for later work of the
  /// current stream.
  Message take();
  /// The `rng_offset` of the message taken last.
  std::uint64_t rng_offset() const { return rng_offset_; }
  /// The bytes of all tensors taken so far.
  std::int64_t bytes() const { return bytes_; }

 private:
  struct IncomingMessage {
    Message message;
    std::uint64_t rng_offset = 0;
    std::vector<Work> works;
  };
  void receive_all();
  IncomingMessage receive(const MessageId& id);

  ProcessGroup& group_;
  const int peer_;
  const std::uint32_t tag_;
  const Device device_;
  const std::vector<MessageId> expected_;
  std::uint64_t rng_offset_ = 0;
  std::int64_t bytes_ = 0;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<IncomingMessage> messages_;  // received ahead, not yet taken
  std::exception_ptr error_;
  bool closing_ = false;
  std::thread thread_;
};

}  // namespace tapestry::distributed
