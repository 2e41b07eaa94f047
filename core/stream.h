#pragma once
// Streams and events: what a device does in order, and how one stream waits for another without the host.
//
//   const Stream side = new_stream("cuda:0");
//   Event ready;
//   ready.record(current_stream("cuda:0"));  // behind what makes x
//   side.wait(ready);
//   {
//     const StreamGuard guard(side);
//     y = f(x);                              // beside what the current stream does next
//   }
//   record_stream(x, side);                  // x's memory is not reused before f has read it
#include <chrono>
#include <cstdint>

#include "tapestry/core/context.h"
#include "tapestry/core/device.h"

namespace tapestry {

class Event;
class Tensor;

namespace detail {
struct StreamRecord;
struct EventRecord;
}  // namespace detail

/// A queue of work on one device, which runs in order, beside other streams, after the calls that gave it
/// have returned. A handle, freely copied; streams live as long as the program. The stream of a CPU never has
/// work: all is done when the call returns.
class Stream {
 public:
  /// That of cpu:0.
  Stream();

  Device device() const;
  /// True if all work given so far is done.
  bool done() const;
  /// The host waits for it.
  void synchronize() const;
  /// What this stream is given from now on waits until `event` has happened; the host does not. Nothing
  /// happens if it was never recorded.
  void wait(const Event& event) const;
  /// The cudaStream_t; null on a CPU.
  void* native() const;
  /// What Context::stream holds while this one is current.
  std::uint64_t id() const { return reinterpret_cast<std::uint64_t>(record_); }
  friend bool operator==(const Stream& a, const Stream& b) { return a.record_ == b.record_; }

 private:
  friend class Event;
  friend Stream current_stream(Device device);
  friend Stream default_stream(Device device);
  friend Stream new_stream(Device device, bool urgent);
  explicit Stream(const detail::StreamRecord* record) : record_(record) {}
  const detail::StreamRecord* record_;
};

/// Where this thread's operations on the device run: its default stream, unless a StreamGuard says otherwise.
/// Throws DeviceError if the device does not exist, as the next two do.
Stream current_stream(Device device);
/// Each logical device has its own.
Stream default_stream(Device device);
/// One of the device's other streams. There are 32 of each urgency a device; then they come round again.
/// `urgent`: the GPU prefers its work to that of others.
Stream new_stream(Device device, bool urgent = false);
/// The host waits for all streams of the device.
void synchronize(Device device);

/// Operations of this thread on the stream's device run on it in this scope; and so does their backward, in
/// order with the stream that it is called on.
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
  /// `timing` costs a little; milliseconds_since() needs it.
  explicit Event(bool timing = false) : timing_(timing) {}
  ~Event();
  Event(Event&& o) noexcept;
  Event& operator=(Event&& o) noexcept;

  /// Behind all work that the stream has been given so far. May be called again; then the earlier point is
  /// forgotten, except by those who already wait for it.
  void record(const Stream& stream);
  /// True if it has happened, or was never recorded.
  bool done() const;
  /// The host waits until it has happened.
  void synchronize() const;
  /// The same, for at most `timeout`; false if it has not happened by then.
  bool wait_for(std::chrono::milliseconds timeout) const;
  /// Time of the device between the two, both of which have happened. ValueError for an event without timing
  /// or never recorded, or on a CPU.
  double milliseconds_since(const Event& begin) const;

 private:
  friend class Stream;
  void forget() noexcept;
  bool timing_;
  detail::EventRecord* record_ = nullptr;  // null: never recorded, or on a CPU
};

/// The memory of `t`, when it is freed, waits for what `stream` had been given by then before it is used
/// again. For tensors that another stream than the one they were made on uses.
void record_stream(const Tensor& t, const Stream& stream);

namespace detail {
/// What contexts with the stream `then` (see Context::stream) are given from now on is done after what those
/// with `first` were given so far. The host waits for nothing.
void order_streams(std::uint64_t first, std::uint64_t then);
}  // namespace detail

}  // namespace tapestry
