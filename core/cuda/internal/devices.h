#pragma once
// All that this process keeps of its CUDA devices.
#include <algorithm>
#include <array>
#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "tapestry/core/cuda/internal/block_pool.h"
#include "tapestry/core/cuda/internal/runtime.h"

namespace tapestry {

namespace cuda {
class Devices;
}

namespace detail {
/// What the handles of a stream point to; never freed.
struct StreamRecord {
  Device device;
  int gpu = -1;
  void* native = nullptr;
  cuda::Runtime* runtime = nullptr;  ///< null: a CPU's
};
struct EventRecord {
  int gpu;
  void* native;
  bool timing;
  cuda::Devices* devices;
};
}  // namespace detail

namespace cuda {

/// A GPU's memory, or page-locked host memory, for a BlockPool.
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

/// One logical device.
class LogicalDevice {
 public:
  LogicalDevice(Devices& devices, Device device, int gpu)
      : pool_source(devices, gpu), pool(pool_source), device_(device), gpu_(gpu), devices_(devices) {}

  RuntimeMemory pool_source;
  BlockPool pool;

  int gpu() const { return gpu_; }
  const detail::StreamRecord* default_stream();
  const detail::StreamRecord* next_stream(bool urgent);

 private:
  static constexpr int kStreams = 32;
  const detail::StreamRecord* make_stream(bool urgent);

  const Device device_;
  const int gpu_;
  Devices& devices_;
  std::mutex mutex_;
  std::atomic<const detail::StreamRecord*> default_{nullptr};
  std::array<std::vector<const detail::StreamRecord*>, 2> streams_;
  std::vector<std::unique_ptr<const detail::StreamRecord>> made_;
  std::array<std::size_t, 2> taken_{};
};

class Devices {
 public:
  /// Null: without CUDA.
  explicit Devices(Runtime* runtime);

  int count() const { return static_cast<int>(devices_.size()); }
  const std::string& why_none() const { return why_none_; }
  Runtime& runtime() const { return *runtime_; }
  /// `device` exists.
  LogicalDevice& at(Device device) const { return *devices_[static_cast<std::size_t>(device.index)]; }
  const std::vector<std::unique_ptr<LogicalDevice>>& all() const { return devices_; }
  BlockPool& pinned() { return pinned_; }
  /// The first that a stream was made on, for calls that are about no GPU (see runtime.h); else GPU 0.
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
  std::vector<detail::EventRecord*> free_;  // that nobody holds
};

/// Made from cuda_runtime() when first asked for; never freed: tensors in static storage outlive main.
Devices& devices();
/// For tests: from now on these are the CUDA devices; null: those of cuda_runtime(). Tensors, streams and
/// events of the earlier ones, which it returns (null if nobody asked for any yet), rest until they are back.
Devices* exchange_devices(Devices* next);

/// Which may have no devices.
Allocator& cuda_allocator();

}  // namespace cuda
}  // namespace tapestry
