#pragma once
// Tensors from one stage's GPU to another's, beside the work of both.
#include <memory>

#include "tapestry/core/stream.h"
#include "tapestry/core/tensor.h"

namespace tapestry::distributed {

/// A device's streams on which tensors leave it and arrive.
struct Ways {
  Stream out, in;
  explicit Ways(Device device) : out(new_stream(device, true)), in(new_stream(device, true)) {}
};

/// The point in a GPU's work at which tensors are ready to leave it.
struct Departure {
  Event ready;
  Stream out;
};
/// What the current stream of the device was given so far. Null on a CPU.
std::shared_ptr<const Departure> depart(Device device, const Ways& ways);

/// `x` on the consumer's device, not recorded. Between GPUs it is copied on streams of their own, as soon as
/// it has departed: what the first was given later and the second earlier neither waits for it nor holds it
/// up, as it does with Tensor::to(). What the consumer is given next waits; the host does not.
Tensor hand_over(const Tensor& x, const Departure* departure, const Stream& consumer, const Ways& ways);

}  // namespace tapestry::distributed
