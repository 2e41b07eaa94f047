#pragma once
// The part of a call that a GPU does.
#include "tapestry/core/stream.h"
#include "tapestry/distributed/comm/backend.h"

namespace tapestry::distributed {

/// Happens on `stream`, after what the caller's stream had been given when it called, and before what the
/// stream of whoever waits is given then. No host waits for it but who asks to.
class DeviceWork {
 public:
  /// In the calling thread.
  explicit DeviceWork(const Stream& stream) : stream_(stream) {
    before_.record(current_stream(stream.device()));
  }
  const Stream& stream() const { return stream_; }
  void begin() const { stream_.wait(before_); }
  void end() { after_.record(stream_); }
  /// After end().
  void join() const { current_stream(stream_.device()).wait(after_); }
  bool done() const { return after_.done(); }
  /// The host waits. Throws TimeoutError, and what the backend finds wrong meanwhile.
  void await(Backend& backend, Deadline deadline) const;

 private:
  const Stream stream_;
  Event before_, after_;
};

}  // namespace tapestry::distributed
