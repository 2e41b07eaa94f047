#pragma once
// Copies tensors from one stage's GPU to another's on separate streams, so that the copy overlaps
// computation.
#include <memory>

#include "tapestry/core/stream.h"
#include "tapestry/core/tensor.h"

namespace tapestry::distributed {

/// The streams of one device that copies between stages use. `outgoing` copies tensors out of the device.
/// Memory for incoming tensors is allocated on `incoming`.
struct CopyStreams {
  ExclusiveStream outgoing, incoming;
  explicit CopyStreams(Device device) : outgoing(device, true), incoming(device, true) {}
};

/// The point in a GPU's work at which tensors are ready to be copied, and the stream that copies them.
struct ReadyEvent {
  Event event;
  Stream copy_stream;
};
/// Records an event after the work submitted so far to the device's current stream. Null on a CPU.
std::shared_ptr<const ReadyEvent> record_ready(Device device, const CopyStreams& streams);

/// Returns `x` on the consumer's device, without recording it on the tape. Between GPUs the copy starts when
/// `ready` has happened. Unlike with Tensor::to(), the copy overlaps later work of the producer and earlier
/// work of the consumer. Later work of the consumer's stream waits for the copy; the host does not.
Tensor copy_between_stages(const Tensor& x, const ReadyEvent* ready, const Stream& consumer,
                           const CopyStreams& streams);

}  // namespace tapestry::distributed
