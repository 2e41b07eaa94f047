#pragma once
// Copies batches to a CUDA device for DataLoader's option `device`.
#include <type_traits>
#include <vector>

#include "tapestry/core/stream.h"
#include "tapestry/core/tensor.h"
#include "tapestry/data/collate.h"

namespace tapestry::data {

/// Calls fn(tensor) for each tensor of a batch that is a Tensor, an Example or a list of such.
template <class B, class F>
void for_tensors(B& batch, const F& fn) {
  if constexpr (std::is_same_v<B, Tensor>) {
    fn(batch);
  } else if constexpr (std::is_same_v<B, Example>) {
    fn(batch.input);
    fn(batch.target);
  } else {
    for (auto& part : batch) for_tensors(part, fn);
  }
}
/// True if for_tensors supports the type.
template <class B>
inline constexpr bool has_tensors = std::is_same_v<B, Tensor> || std::is_same_v<B, Example>;
template <class B>
inline constexpr bool has_tensors<std::vector<B>> = has_tensors<B>;

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
