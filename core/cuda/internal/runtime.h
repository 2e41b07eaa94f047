#pragma once
// The calls that core makes to a GPU's driver: CUDA's runtime, or in tests a fake one. Handles are what the
// runtime says they are. All throw CudaError for what goes wrong, but where null or noexcept says otherwise.
//
// Calls that are about no GPU, of events and page-locked memory, are told of one all the same: CUDA makes a
// context on the calling thread's GPU, which is GPU 0, whoever uses it, where the thread has chosen none, and
// that takes some 500 MB there. They leave a GPU that the thread has chosen, for others may go by it.
#include <cstddef>
#include <string>

#include "tapestry/core/cuda/device.h"

namespace tapestry::cuda {

class Runtime {
 public:
  virtual ~Runtime() = default;
  /// How many GPUs this process may use; where there are none, why.
  virtual int gpu_count(std::string& why_none) = 0;
  /// All but `gpu`, which is the argument.
  virtual DeviceProperties properties(int gpu) = 0;
  virtual MemoryInfo memory(int gpu) = 0;
  /// Waits until all streams of the GPU have done their work.
  virtual void synchronize(int gpu) = 0;

  /// Null if there is no room.
  virtual void* allocate(int gpu, std::size_t bytes) = 0;
  /// Waits for what the GPU does.
  virtual void release(int gpu, void* data) noexcept = 0;
  /// Page-locked host memory that all GPUs reach; null if there is no room.
  virtual void* allocate_host(int gpu, std::size_t bytes) = 0;
  virtual void release_host(int gpu, void* data) noexcept = 0;

  virtual void* create_stream(int gpu, bool urgent) = 0;
  virtual bool stream_done(int gpu, void* stream) = 0;
  virtual void wait_for_stream(int gpu, void* stream) = 0;

  virtual void* create_event(int gpu, bool timing) = 0;
  virtual void record_event(int gpu, void* event, void* stream) = 0;
  /// True for an event that was never recorded.
  virtual bool event_done(int gpu, void* event) = 0;
  virtual void wait_for_event(int gpu, void* event) = 0;
  /// The host does not wait.
  virtual void stream_waits(int gpu, void* stream, void* event) = 0;
  virtual double milliseconds_between(int gpu, void* begin, void* end) = 0;

  /// Between this GPU's memory and itself or the host's.
  virtual void copy(int gpu, void* stream, void* to, const void* from, std::size_t bytes) = 0;
  /// The stream is of `from_gpu`.
  virtual void copy_between(int to_gpu, void* to, int from_gpu, const void* from, std::size_t bytes,
                            void* stream) = 0;
  /// `rows` rows of `width` bytes, whose beginnings are `to_pitch` and `from_pitch` bytes apart, neither of
  /// which is less than `width`.
  virtual void copy_rows(int gpu, void* stream, void* to, std::size_t to_pitch, const void* from,
                         std::size_t from_pitch, std::size_t width, std::size_t rows) = 0;
};

/// CUDA's; null in a build without it.
Runtime* cuda_runtime();

}  // namespace tapestry::cuda
