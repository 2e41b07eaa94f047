#pragma once
// Parcels on their way between the stages of two ranks.
//
// Who receives does not know what comes: a stage may return other shapes for another batch, or even for the
// same one. So a label of fixed size goes ahead of the tensors and says what they are. Neither side waits for
// the other: sends are posted and looked at again later, and a thread of the receiver's answers labels while
// the stage computes, so that the tensors of the next parcels are on their way by then.
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "tapestry/distributed/comm/process_group.h"
#include "tapestry/distributed/pipeline/internal/stage_graphs.h"

namespace tapestry::distributed {

/// How many tensors go in one parcel: of outputs one less, since a loss may travel with their gradients.
inline constexpr int kParcelTensors = 33;
/// How many parcels are received ahead, and how many sent ahead of the receiver: memory stays bounded. Two
/// are enough for every schedule to go on as it would without a bound.
inline constexpr std::size_t kParcelsAhead = 2;

/// What a parcel is for. Both sides know; they compare.
struct ParcelName {
  enum class Kind : std::uint8_t { outputs, gradients } kind = Kind::outputs;
  int micro_batch = 0;
  std::uint64_t pass = 0;
  friend bool operator==(const ParcelName&, const ParcelName&) = default;
  /// "the gradients of micro-batch 3 in pass 7"
  std::string str() const;
};

/// The fixed bytes that go ahead of a parcel. Undefined tensors are said to be so.
class ParcelLabel {
 public:
  ParcelLabel() = default;
  /// Throws ValueError for more tensors than a parcel has room for.
  static void check_room(ParcelName::Kind kind, std::size_t tensors);
  /// Throws it too. `drawn`: see ParcelSender.
  ParcelLabel(const ParcelName& name, const Parcel& parcel, std::uint64_t drawn);
  /// Its bytes as they travel, in memory of their own, and back.
  explicit ParcelLabel(const Tensor& bytes);
  Tensor bytes() const;
  static Tensor empty_bytes();

  /// Throws DistributedError if the bytes are no label, or one of another parcel.
  void check_is(const ParcelName& expected, int peer) const;
  /// Memory for what comes, laid out as what was sent; undefined where nothing comes.
  Parcel make_parcel(Device device) const;
  std::uint64_t drawn() const { return drawn_; }

 private:
  struct Entry {
    std::uint8_t dtype = 0, ndim = 0, defined = 0, wants_gradient = 0, channels_last = 0;
    std::uint8_t reserved[3] = {};
    std::int64_t sizes[kMaxDims] = {};
  };
  std::uint32_t magic_ = 0;
  std::int32_t micro_batch_ = 0;
  std::uint64_t pass_ = 0, drawn_ = 0;
  std::uint8_t kind_ = 0, count_ = 0;
  [[maybe_unused]] std::uint8_t reserved_[6] = {};
  Entry entries_[kParcelTensors];

  ParcelName name() const;
};

/// One direction to one peer.
class ParcelSender {
 public:
  ParcelSender(ProcessGroup& group, int peer, std::uint32_t tag) : group_(group), peer_(peer), tag_(tag) {}

  /// Posts it. Waits for the one that was sent kParcelsAhead + 1 earlier. `drawn` travels along: how far this
  /// stage and those behind it have come in their random numbers.
  void send(const ParcelName& name, const Parcel& parcel, std::uint64_t drawn);
  /// Waits until the peer has all.
  void finish();

 private:
  void wait_for_first();

  ProcessGroup& group_;
  const int peer_;
  const std::uint32_t tag_;
  std::deque<std::vector<Work>> sent_;  // each parcel's
};

/// One direction from one peer: what `expected` names, in this order. The group must have failed, or all must
/// have been taken, before it is destroyed.
class ParcelReceiver {
 public:
  ParcelReceiver(ProcessGroup& group, int peer, std::uint32_t tag, Device device,
                 std::vector<ParcelName> expected);
  ~ParcelReceiver();
  ParcelReceiver(const ParcelReceiver&) = delete;
  ParcelReceiver& operator=(const ParcelReceiver&) = delete;

  /// The next one, when its tensors are here: on a CUDA device for what the current stream is given from then
  /// on.
  Parcel take();
  /// What was said with it.
  std::uint64_t drawn() const { return drawn_; }
  /// Of tensors, taken so far.
  std::int64_t bytes() const { return bytes_; }

 private:
  struct OnTheWay {
    Parcel parcel;
    std::uint64_t drawn = 0;
    std::vector<Work> works;
  };
  void receive_all();
  OnTheWay receive(const ParcelName& name);

  ProcessGroup& group_;
  const int peer_;
  const std::uint32_t tag_;
  const Device device_;
  const std::vector<ParcelName> expected_;
  std::uint64_t drawn_ = 0;
  std::int64_t bytes_ = 0;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<OnTheWay> parcels_;
  std::exception_ptr error_;
  bool closing_ = false;
  std::thread thread_;
};

}  // namespace tapestry::distributed
