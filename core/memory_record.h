#pragma once
// Records what the memory of devices is used for over time:
//
//   MemoryRecord record;  // before the model is built
//   ... build the model and train a step ...
//   record.restart();
//   ... train another step ...
//   for (const MemorySample& s : record.samples(kCPU)) plot(s.seconds, s.bytes);
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "tapestry/core/clock.h"
#include "tapestry/core/device.h"
#include "tapestry/core/tensor.h"

namespace tapestry {

/// What a block of memory is used for.
enum class MemoryKind : std::uint8_t {
  parameters,   ///< tensors of parameters, sharded and gathered ones
  gradients,    ///< gradients of parameters, also those in the buckets of DistributedDataParallel
  optimizer,    ///< the state of optimizers
  activations,  ///< tensors that forward saved for backward
  buffers,      ///< buffers of modules
  other         ///< everything else: results that nothing saved, the batch, copies that a collective
                ///< needs, memory from before the record
};
inline constexpr int kNumMemoryKinds = 6;
/// "parameters"
const char* memory_kind_name(MemoryKind kind);

/// The bytes in live tensors of one device at one moment.
struct MemorySample {
  double seconds = 0;  ///< since the construction of the record or its last restart()
  std::array<std::int64_t, kNumMemoryKinds>
      bytes{};  ///< per MemoryKind; they add up to the allocator's count
  std::int64_t total() const;
};

/// Records every allocation while it exists, in all threads. It replaces the allocators of all device types
/// by ones that take a lock, note the time and call the originals. Without a record nothing is replaced, and
/// the library's calls of tag_memory() cost one load each.
///
/// The kind of a block is what the library last found it to be used for, and holds for the whole life of the
/// block: the result of a kernel that becomes a gradient counts as gradient from its allocation on. Memory
/// that was allocated before the record is `other`. On a GPU, times are those of the host, which allocates
/// ahead of the device.
class MemoryRecord {
 public:
  /// Throws ValueError if there is a record already.
  MemoryRecord();
  ~MemoryRecord();
  MemoryRecord(const MemoryRecord&) = delete;
  MemoryRecord& operator=(const MemoryRecord&) = delete;

  /// Forgets the history. The kinds of live blocks stay known.
  void restart();
  /// Returns the bytes at the begin and after each change.
  std::vector<MemorySample> samples(Device device) const;
  /// The time from which samples count.
  std::chrono::steady_clock::time_point began() const;
  static bool active() { return recording.load(std::memory_order_relaxed); }

 private:
  static std::atomic<bool> recording;
};

namespace detail {
void tag_block(Device device, const void* data, MemoryKind kind);
void inherit_block_kind(const Tensor& from, const Tensor& to);
}  // namespace detail

/// Says what the block that contains this tensor is used for. Does nothing without a MemoryRecord, or if the
/// tensor's memory is not an allocator's. `activations` does not replace another kind than `other`, because
/// forward saves parameters too.
inline void tag_memory(const Tensor& tensor, MemoryKind kind) {
  if (MemoryRecord::active() && tensor.defined()) [[unlikely]]
    detail::tag_block(tensor.device(), tensor.storage()->data(), kind);
}
/// Says that `to` is used for the same as `from`, such as a parameter's copy on another device.
inline void inherit_memory_kind(const Tensor& from, const Tensor& to) {
  if (MemoryRecord::active() && from.defined() && to.defined()) [[unlikely]]
    detail::inherit_block_kind(from, to);
}

}  // namespace tapestry
