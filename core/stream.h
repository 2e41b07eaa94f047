#pragma once
// Streams and events: the order of work on a device, and how one stream waits for another without blocking
// the host.
//
//   const Stream side = new_stream("cuda:0");
//   Event ready;
//   ready.record(current_stream("cuda:0"));  // after the work that computes x
//   side.wait(ready);
//   {
//     const StreamGuard guard(side);
//     y = f(x);                              // may overlap later work of the current stream
//   }
//   record_stream(x, side);                  // x's memory is not reused before f has read it
#include <cstdint>
#include <utility>

#include "tapestry/core/clock.h"
#include "tapestry/core/context.h"
#include "tapestry/core/device.h"

namespace tapestry {

class Event;
class ExclusiveStream;
class Tensor;

namespace detail {
struct StreamRecord;
struct EventRecord;
}  // namespace detail

/// A queue of work on one device. Work in one stream runs in order and asynchronously: the call that enqueues
/// it returns before it has run. Different streams may run at the same time. A Stream is a handle that can be
/// copied freely; the stream itself exists until the program ends. A CPU's stream never has pending work,
/// since CPU operations finish before they return.
class Stream {
 public:
  /// The stream of cpu:0.
  Stream();

  Device device() const;
  /// True if all work enqueued so far has finished.
  bool done() const;
  /// Blocks the host until all work enqueued so far has finished.
  void synchronize() const;
  /// Makes work that is enqueued here later wait for `event`, without blocking the host. Does nothing if the
  /// event was never recorded.
  void wait(const Event& event) const;
  /// The cudaStream_t; null on a CPU.
  void* native() const;
  /// The value of Context::stream while this stream is current.
  std::uint64_t id() const { return reinterpret_cast<std::uint64_t>(record_); }
  friend bool operator==(const Stream& a, const Stream& b) { return a.record_ == b.record_; }

 private:
  friend class Event;
  friend class ExclusiveStream;
  friend Stream current_stream(Device device);
  friend Stream default_stream(Device device);
  friend Stream new_stream(Device device, bool urgent);
  explicit Stream(const detail::StreamRecord* record) : record_(record) {}
  const detail::StreamRecord* record_;
};

/// The stream on which this thread's operations on the device run: the device's default stream, unless a
/// StreamGuard selects another. Throws DeviceError if the device does not exist; so do default_stream() and
/// new_stream().
Stream current_stream(Device device);
/// The device's default stream. Each logical device has its own.
Stream default_stream(Device device);
/// A stream from the device's pool, which is shared by all callers as in PyTorch. The pool has 32 streams of
/// each priority and returns them round-robin, so the 33rd caller shares a stream with the first, and one
/// caller's work may wait for the other's. Use ExclusiveStream for work that must not wait for unrelated
/// work. `urgent` selects the GPU's highest stream priority, otherwise the lowest.
Stream new_stream(Device device, bool urgent = false);
/// Blocks the host until all streams of the device have finished their work.
void synchronize(Device device);

/// A stream that has one owner: no other caller receives it while this object exists. Communication needs
/// this. If two messages shared a stream, a send could wait behind a receive whose peer waits for that send.
///
/// The destructor does not wait. It returns the stream to the device, which gives it to a later
/// ExclusiveStream after its work has finished. Copies of the Stream stay valid, but may then refer to
/// another owner's stream. Movable; a moved-from object owns nothing.
///
/// The driver maps streams to at most CUDA_DEVICE_MAX_CONNECTIONS hardware queues (8 unless that variable
/// says otherwise, at most 32). Streams that share a hardware queue can still delay each other.
class ExclusiveStream {
 public:
  /// Throws DeviceError if the device does not exist. On a CPU this is the device's only stream.
  explicit ExclusiveStream(Device device, bool urgent = false);
  ~ExclusiveStream() { give_back(); }
  ExclusiveStream(ExclusiveStream&& o) noexcept : stream_(std::exchange(o.stream_, Stream())) {}
  ExclusiveStream& operator=(ExclusiveStream&& o) noexcept {
    std::swap(stream_, o.stream_);
    return *this;
  }

  const Stream& stream() const { return stream_; }
  operator const Stream&() const { return stream_; }  // NOLINT: it is passed wherever a Stream is

 private:
  void give_back() noexcept;
  Stream stream_;
};

/// Makes `stream` current in this scope: this thread's operations on the stream's device run on it. Their
/// backward runs on it too, ordered with the stream that backward() is called on.
class StreamGuard {
 public:
  explicit StreamGuard(const Stream& stream) : saved_(current_context().stream) {
    current_context().stream = stream.id();
  }
  ~StreamGuard() { current_context().stream = saved_; }
  StreamGuard(const StreamGuard&) = delete;
  StreamGuard& operator=(const StreamGuard&) = delete;

 private:
  std::uint64_t saved_;
};

/// A point in a stream's work. Movable, not thread-safe.
class Event {
 public:
  /// milliseconds_since() needs `timing`, which makes the event slightly slower.
  explicit Event(bool timing = false) : timing_(timing) {}
  ~Event();
  Event(Event&& o) noexcept;
  Event& operator=(Event&& o) noexcept;

  /// Records the event after all work that the stream has been given so far. An event may be recorded again.
  /// Streams that already wait for the earlier point keep waiting for that point.
  void record(const Stream& stream);
  /// True if the stream has reached the event, or if the event was never recorded.
  bool done() const;
  /// Blocks the host until the stream has reached the event.
  void synchronize() const;
  /// Blocks the host for at most `timeout`. Returns false if the stream has not reached the event by then.
  bool wait_for(std::chrono::milliseconds timeout) const;
  /// Milliseconds of device time from `begin` to this event. Throws DeviceError unless the streams have
  /// reached both events. Throws ValueError if either event has no timing, was never recorded, or was
  /// recorded on a CPU.
  double milliseconds_since(const Event& begin) const;

 private:
  friend class Stream;
  void forget() noexcept;
  bool timing_;
  detail::EventRecord* record_ = nullptr;  // null: never recorded, or recorded on a CPU
};

/// Tells the allocator that `stream` uses the memory of `t`. After `t` is freed, its memory is reused only
/// when `stream` has finished the work that it had at that time. Call it for tensors that are used on another
/// stream than the one that was current when they were made.
void record_stream(const Tensor& t, const Stream& stream);

namespace detail {
/// Makes the later work of one context wait for the earlier work of another, without blocking the host.
/// `first` and `then` are the values of Context::stream in the two contexts. For the device of each value,
/// the stream that is current if Context::stream is `then` waits for all work so far of the stream that is
/// current if it is `first`.
void order_streams(std::uint64_t first, std::uint64_t then);
}  // namespace detail

}  // namespace tapestry
