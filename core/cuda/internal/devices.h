#pragma once
// The CUDA devices of this process, with their memory pools, streams and events.
#include <algorithm>
#include <array>
#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "tapestry/core/cuda/internal/block_pool.h"
#include "tapestry/core/cuda/internal/runtime.h"

namespace tapestry {

namespace cuda {
class Devices;
class LogicalDevice;
}  // namespace cuda

namespace detail {
/// A stream. Stream handles point to it, so it is freed only together with its Devices.
struct StreamRecord {
  Device device;
  int gpu = -1;
  void* native = nullptr;
  cuda::Runtime* runtime = nullptr;      ///< null for the stream of a CPU
  cuda::LogicalDevice* owner = nullptr;  ///< null for the stream of a CPU
  bool urgent = false;
};
struct EventRecord {
  int gpu;
  void* native;
  bool timing;
  cuda::Devices* devices;
};
}  // namespace detail

namespace cuda {

/// The MemorySource of a BlockPool: a GPU's memory, or page-locked host memory if `gpu` is kHost.
class RuntimeMemory final : public MemorySource {
 public:
  static constexpr int kHost = -1;
  RuntimeMemory(Devices& devices, int gpu) : devices_(devices), gpu_(gpu) {}
  void* allocate(std::size_t bytes) override;
  void release(void* data) noexcept override;
  void* mark(StreamId stream) override;
  bool reached(void* mark) override;
  void await(void* mark) override;
  void drop(void* mark) noexcept override;

 private:
  Devices& devices_;
  const int gpu_;
};

/// A logical device: its memory pool and its streams. Thread-safe.
class LogicalDevice {
 public:
  LogicalDevice(Devices& devices, Device device, int gpu)
      : pool_source(devices, gpu), pool(pool_source), device_(device), gpu_(gpu), devices_(devices) {}

  RuntimeMemory pool_source;
  BlockPool pool;

  int gpu() const { return gpu_; }
  const detail::StreamRecord* default_stream();
  /// A stream of the shared pool, round-robin.
  const detail::StreamRecord* next_stream(bool urgent);
  /// A stream that nobody else has, until it is given back. Reuses one that was given back if its work has
  /// finished.
  const detail::StreamRecord* take_stream(bool urgent);
  void give_back(const detail::StreamRecord* stream) noexcept;
  /// The stream's kStreamCounters counters, in device memory (see stream_counters.h). Created at the first
  /// call.
  std::uint32_t* counters(const detail::StreamRecord* stream);
  /// The cell in which the device's kernels report indices out of range (core/internal/deferred_check.h), in
  /// page-locked memory. Created at the first call.
  std::int64_t* report_cell();
  /// Destroys the streams, their counters and the cell.
  void destroy_streams() noexcept;

 private:
  static constexpr int kStreams = 32;
  const detail::StreamRecord* make_stream(bool urgent);

  const Device device_;
  const int gpu_;
  Devices& devices_;
  std::mutex mutex_;
  std::atomic<const detail::StreamRecord*> default_{nullptr};
  std::atomic<std::int64_t*> report_cell_{nullptr};
  std::array<std::vector<const detail::StreamRecord*>, 2> streams_;
  std::vector<std::unique_ptr<const detail::StreamRecord>> made_;
  std::array<std::size_t, 2> taken_{};
  std::vector<const detail::StreamRecord*> returned_;  // by ExclusiveStreams that are gone
  std::unordered_map<const detail::StreamRecord*, std::uint32_t*> counters_;
};

class Devices {
 public:
  /// `runtime` is null in a build without CUDA.
  explicit Devices(Runtime* runtime);
  /// Releases cached memory, streams and events. All tensors, streams and events of these devices must be
  /// gone. Only tests destroy Devices: see devices().
  ~Devices();
  Devices(const Devices&) = delete;
  Devices& operator=(const Devices&) = delete;

  int count() const { return static_cast<int>(devices_.size()); }
  const std::string& why_none() const { return why_none_; }
  Runtime& runtime() const { return *runtime_; }
  /// The caller has checked that `device` exists.
  LogicalDevice& at(Device device) const { return *devices_[static_cast<std::size_t>(device.index)]; }
  const std::vector<std::unique_ptr<LogicalDevice>>& all() const { return devices_; }
  BlockPool& pinned() { return pinned_; }
  /// The GPU on which the first stream was made, or GPU 0 if there is none yet. It is passed to the calls of
  /// Runtime that concern no particular GPU (see runtime.h).
  int gpu_in_use() const { return std::max(in_use_.load(std::memory_order_relaxed), 0); }
  void note_use(int gpu) {
    int none = -1;
    in_use_.compare_exchange_strong(none, gpu, std::memory_order_relaxed);
  }

  detail::EventRecord* take_event(int gpu, bool timing);
  void give_back(detail::EventRecord* event) noexcept;

 private:
  Runtime* const runtime_;
  std::string why_none_;
  std::vector<std::unique_ptr<LogicalDevice>> devices_;
  std::atomic<int> in_use_{-1};
  RuntimeMemory pinned_source_;
  BlockPool pinned_;
  std::mutex mutex_;
  std::vector<std::unique_ptr<detail::EventRecord>> made_;
  std::vector<detail::EventRecord*> free_;  // held by nobody
};

/// The process's devices. Made from cuda_runtime() at the first call, and never freed: tensors in static
/// storage outlive main().
Devices& devices();
/// Replaces the process's devices in tests; null restores those of cuda_runtime(). Returns the previous
/// devices, or null if there were none yet. Tensors, streams and events of the previous devices must not be
/// used until these are restored.
Devices* exchange_devices(Devices* next);

/// The allocator of CUDA memory. It exists even if there is no CUDA device.
Allocator& cuda_allocator();

}  // namespace cuda
}  // namespace tapestry
