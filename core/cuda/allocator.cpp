// Device memory behind the interface of core/allocator.h: one pool a logical device, blocks by stream.
#include "tapestry/core/cuda/internal/devices.h"
#include "tapestry/core/error.h"
#include "tapestry/core/stream.h"

namespace tapestry::cuda {
namespace {

class CudaAllocator final : public Allocator {
 public:
  void* allocate(Device device, std::size_t bytes) override {
    if (bytes == 0) return nullptr;
    const StreamId stream = current_stream(device).id();
    LogicalDevice& own = devices().at(device);
    void* data = own.pool.allocate(bytes, stream);
    if (!data) {
      // Others on the GPU may have cached what is missing here.
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
    if (bytes == 0) return;
    const Stream stream = current_stream(device);
    devices().runtime().copy(devices().at(device).gpu(), stream.native(), to, from, bytes);
    stream.synchronize();
  }
};

}  // namespace

Allocator& cuda_allocator() {
  static Allocator& one = *new CudaAllocator;
  return one;
}

}  // namespace tapestry::cuda
