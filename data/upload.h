#pragma once
// Copies batches to a CUDA device for DataLoader's option `device`.
#include "tapestry/core/stream.h"
#include "tapestry/core/tensor.h"
#include "tapestry/data/batch.h"

namespace tapestry::data {

/// Copies tensors through pinned memory on its own stream, so copies overlap with computation. It is
/// thread-safe.
class Upload {
 public:
  /// Throws DeviceError unless `device` is a CUDA device that exists.
  explicit Upload(Device device);
  /// Starts a copy of `t` and returns the tensor on the device. `t` is on the CPU or undefined.
  Tensor send(const Tensor& t) const;
  /// Records `event` after all copies so far.
  void mark(Event& event) const { event.record(stream_); }
  /// Makes the caller's current stream wait for `event`. `t` must have been sent before `event` was recorded.
  void arrive(const Tensor& t, const Event& event) const;

 private:
  Device device_;
  Stream stream_;
};

}  // namespace tapestry::data
