#pragma once
// Fake GPUs: core/cuda/internal/runtime.h implemented in host memory. Streams run their work only when the
// host waits for it or keeps polling, so code that forgets to wait reads old values. Only the work of streams
// can access a device's memory: any other access is a segmentation fault. A capture records the work of a
// stream as nodes, and refuses what CUDA refuses in a thread-local capture: waits, questions about streams
// and events, releases, copies of pageable memory, and other streams.
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>

#include "tapestry/core/cuda/internal/devices.h"
#include "tapestry/core/stream.h"

namespace tapestry::testing {

struct FakeGpuState;

/// While a FakeGpus exists, the CUDA devices are on fake GPUs: one device per GPU, or as many as
/// TAPESTRY_LOGICAL_DEVICES says. Tensors on these devices must be destroyed before it.
class FakeGpus {
 public:
  explicit FakeGpus(int gpus = 2, std::size_t memory_each = std::size_t{256} << 20);
  ~FakeGpus();
  FakeGpus(const FakeGpus&) = delete;
  FakeGpus& operator=(const FakeGpus&) = delete;

  /// Enqueues `work` in place of a kernel. If it throws, the host's next wait rethrows the exception.
  void launch(const Stream& stream, std::function<void()> work);
  void launch(void* native_stream, std::function<void()> work);
  /// Enqueues a kernel that waits for kernels of other streams, like NCCL's: `work` is called until it
  /// returns true, and later work of the stream waits for it.
  void launch_until(void* native_stream, std::function<bool()> work);
  /// Returns the calling thread's current device, which is the GPU of its last call to the fake runtime.
  /// Returns -1 if the thread that constructed this object has made no such call since then, and on other
  /// threads if they have never made one.
  static int chosen_gpu();
  /// The number of captured graphs that exist.
  std::size_t graphs() const;
  /// Returns how often the host waited for a GPU: for a stream, for an event, or to release memory.
  std::int64_t host_waits() const;
  /// freeze(true) stops all streams: no work runs, and waits of the host return at once. freeze(false)
  /// continues.
  void freeze(bool on);
  /// Bytes in use on the GPU, or of page-locked memory if gpu is -1.
  std::size_t reserved(int gpu) const;
  /// True if CUDA would have created a context on the GPU: a call used it as the thread's current device.
  bool is_in_use(int gpu) const;
  /// From now on, these two GPUs cannot access each other's memory.
  void separate(int gpu, int other);
  /// The number of copies from one GPU to another so far.
  int copies_between() const;
  /// Makes the next call that creates or records an event, copies or allocates throw CudaError.
  void break_next();

 private:
  const std::unique_ptr<FakeGpuState> state_;
  std::unique_ptr<cuda::Devices> devices_;
  cuda::Devices* before_;
};

}  // namespace tapestry::testing
