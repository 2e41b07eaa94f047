#pragma once
// Work that a call of a process group enqueues on a GPU.
#include "tapestry/core/stream.h"
#include "tapestry/distributed/comm/backend.h"

namespace tapestry::distributed {

/// Work on `stream` that is ordered by events: it starts after the earlier work of the caller's stream, and
/// join() makes the current stream wait for it. The host waits only in await().
class DeviceWork {
 public:
  /// Records the caller's current stream; call it in the caller's thread.
  explicit DeviceWork(const Stream& stream) : stream_(stream) {
    before_.record(current_stream(stream.device()));
  }
  const Stream& stream() const { return stream_; }
  /// Call begin() before the work is enqueued on `stream`, and end() after it.
  void begin() const { stream_.wait(before_); }
  void end() { after_.record(stream_); }
  /// Makes the current stream wait for the work. Call it after end().
  void join() const { current_stream(stream_.device()).wait(after_); }
  bool done() const { return after_.done(); }
  /// The host waits for the work, at most `time`. Returns whether it is done.
  bool wait_for(Milliseconds time) const { return after_.wait_for(time); }
  /// Makes `later` wait for the work. Call it after end().
  void precede(const Stream& later) const { later.wait(after_); }
  /// The host waits for the work. Throws TimeoutError at the deadline, and errors of Backend::poll().
  void await(Backend& backend, Deadline deadline) const;

 private:
  const Stream stream_;
  Event before_, after_;
};

}  // namespace tapestry::distributed
