#pragma once
// GPUs without a GPU: the runtime of core/cuda/internal/runtime.h in host memory. Its streams do nothing
// until the host waits for them or asks again and again, so that whoever forgets to wait reads what is not
// there yet; the memory of a device can be touched by its streams' work alone, anybody else's access is a
// fault.
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>

#include "tapestry/core/cuda/internal/devices.h"
#include "tapestry/core/stream.h"

namespace tapestry::testing {

struct FakeGpuState;

/// While it lives, the CUDA devices are these GPUs, or the logical ones that TAPESTRY_LOGICAL_DEVICES asks
/// for. Tensors made on them are gone before it is.
class FakeGpus {
 public:
  explicit FakeGpus(int gpus = 2, std::size_t memory_each = std::size_t{256} << 20);
  ~FakeGpus();
  FakeGpus(const FakeGpus&) = delete;
  FakeGpus& operator=(const FakeGpus&) = delete;

  /// A kernel, as it were. What it throws, the host's next wait throws.
  void launch(const Stream& stream, std::function<void()> work);
  void launch(void* native_stream, std::function<void()> work);
  /// Whether kernels can use the address: it is memory of a GPU, or page-locked.
  bool reach(const void* address) const;
  /// How often the host waited for a GPU: for a stream or an event, or to give memory back.
  std::int64_t host_waits() const;
  /// Nothing runs, whoever asks, while it is on; a host that waits goes on with nothing done.
  void freeze(bool on);
  /// As if the process had used its memory otherwise.
  void take_memory(int gpu, std::size_t bytes);
  /// Bytes of the GPU that are reserved; of page-locked memory with gpu = -1.
  std::size_t reserved(int gpu) const;
  /// Whether the process has a context on the GPU: some call was about it, or about none in a thread that had
  /// chosen it, or none.
  bool is_in_use(int gpu) const;
  /// Copies from one GPU to another so far.
  int copies_between() const;
  /// The next call to create an event, to record, copy or allocate fails as if the driver had.
  void break_next();

 private:
  const std::unique_ptr<FakeGpuState> state_;
  std::unique_ptr<cuda::Devices> devices_;
  cuda::Devices* before_;
};

}  // namespace tapestry::testing
