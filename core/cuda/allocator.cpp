// The allocators of CUDA memory. The default one caches: each logical device has one pool, whose blocks
// belong to streams. With TAPESTRY_CUDA_ALLOCATOR=system each tensor has an allocation of exactly its size.
// That is slow, since freeing waits for the GPU, but compute-sanitizer then finds accesses beyond a tensor's
// end.
#include <algorithm>
#include <array>
#include <cstdlib>
#include <mutex>
#include <string_view>

#include "tapestry/core/cuda/internal/devices.h"
#include "tapestry/core/error.h"
#include "tapestry/core/internal/capture_state.h"
#include "tapestry/core/stream.h"

namespace tapestry::cuda {
namespace {

void copy_and_wait(Device device, void* to, const void* from, std::size_t bytes) {
  if (bytes == 0) return;
  detail::refuse_in_capture("Allocator::copy",
                            "read and write device memory from the host outside of the step");
  const Stream stream = current_stream(device);
  devices().runtime().copy(devices().at(device).gpu(), stream.native(), to, from, bytes);
  stream.synchronize();
}

class CudaAllocator final : public Allocator {
 public:
  void* allocate(Device device, std::size_t bytes) override {
    if (bytes == 0) return nullptr;
    const StreamId stream = current_stream(device).id();
    LogicalDevice& own = devices().at(device);
    void* data = own.pool.allocate(bytes, stream);
    if (!data && !detail::current_capture()) {
      // Other logical devices on this GPU may have cached the memory that is missing. Empty their caches and
      // try again.
      for (const auto& other : devices().all())
        if (other.get() != &own && other->gpu() == own.gpu()) other->pool.empty_cache();
      data = own.pool.allocate(bytes, stream);
    }
    if (!data) {
      const MemoryInfo gpu = devices().runtime().memory(own.gpu());
      throw OutOfMemoryError(out_of_memory_text(device.str(), bytes, own.pool.stats(),
                                                own.pool.largest_free(stream), gpu.free, gpu.total));
    }
    return data;
  }

  void deallocate(Device device, void* data, std::size_t) noexcept override {
    if (data) devices().at(device).pool.deallocate(data);
  }
  MemoryStats stats(Device device) const override { return devices().at(device).pool.stats(); }
  void reset_peak(Device device) override { devices().at(device).pool.reset_peak(); }
  void empty_cache() override {
    for (const auto& device : devices().all()) device->pool.empty_cache();
    devices().pinned().empty_cache();
  }
  void copy(Device device, void* to, const void* from, std::size_t bytes) override {
    copy_and_wait(device, to, from, bytes);
  }
};

class SystemAllocator final : public Allocator {
 public:
  void* allocate(Device device, std::size_t bytes) override {
    if (bytes == 0) return nullptr;
    const int gpu = devices().at(device).gpu();
    void* const data = devices().runtime().allocate(gpu, bytes);
    const std::lock_guard lock(mutex_);
    MemoryStats& stats = stats_of(device);
    if (!data) {
      const MemoryInfo memory = devices().runtime().memory(gpu);
      throw OutOfMemoryError(out_of_memory_text(device.str(), bytes, stats, 0, memory.free, memory.total));
    }
    ++stats.allocations;
    stats.reserved = stats.allocated += static_cast<std::int64_t>(bytes);
    stats.peak_allocated = std::max(stats.peak_allocated, stats.allocated);
    return data;
  }
  void deallocate(Device device, void* data, std::size_t bytes) noexcept override {
    if (!data) return;
    devices().runtime().release(devices().at(device).gpu(), data);
    const std::lock_guard lock(mutex_);
    MemoryStats& stats = stats_of(device);
    stats.reserved = stats.allocated -= static_cast<std::int64_t>(bytes);
  }
  MemoryStats stats(Device device) const override {
    const std::lock_guard lock(mutex_);
    return stats_[static_cast<std::size_t>(device.index)];
  }
  void reset_peak(Device device) override {
    const std::lock_guard lock(mutex_);
    stats_of(device).peak_allocated = stats_of(device).allocated;
  }
  void empty_cache() override { devices().pinned().empty_cache(); }
  void copy(Device device, void* to, const void* from, std::size_t bytes) override {
    copy_and_wait(device, to, from, bytes);
  }

 private:
  MemoryStats& stats_of(Device device) { return stats_[static_cast<std::size_t>(device.index)]; }

  mutable std::mutex mutex_;
  std::array<MemoryStats, kMaxDevices> stats_;
};

Allocator* configured_allocator() {
  std::string_view kind = "caching";
  if (const char* const text = std::getenv("TAPESTRY_CUDA_ALLOCATOR")) kind = text;
  check(kind == "caching" || kind == "system", "[allocator] TAPESTRY_CUDA_ALLOCATOR is \"", kind,
        "\"; set it to caching or system, or unset it");
  if (kind == "system") return new SystemAllocator;
  return new CudaAllocator;
}

}  // namespace

Allocator& cuda_allocator() {
  static Allocator& one = *configured_allocator();
  return one;
}

}  // namespace tapestry::cuda
