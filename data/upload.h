#pragma once
// Batches on their way to a CUDA device: what DataLoader does with its option `device`.
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
/// Whether for_tensors knows the type.
template <class B>
inline constexpr bool has_tensors = std::is_same_v<B, Tensor> || std::is_same_v<B, Example>;
template <class B>
inline constexpr bool has_tensors<std::vector<B>> = has_tensors<B>;

/// Copies through page-locked memory on a stream of its own, beside what the device computes. Thread-safe.
class Upload {
 public:
  /// Throws DeviceError unless `device` is a CUDA device that exists.
  explicit Upload(Device device);
  /// A copy on the device, which is not there yet. `t` is on the CPU, or undefined.
  Tensor send(const Tensor& t) const;
  /// Behind all that was sent.
  void mark(Event& event) const { event.record(stream_); }
  /// What the caller's stream is given from now on may use `t`, which was sent before `event` was marked.
  void arrive(const Tensor& t, const Event& event) const;

 private:
  Device device_;
  Stream stream_;
};

}  // namespace tapestry::data
