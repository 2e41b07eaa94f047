#pragma once
// The calls that core makes to the CUDA runtime. Tests replace it by a fake. Handles are opaque: their
// meaning is the implementation's. Calls throw CudaError when they fail, except where a comment says that
// they return null, and except noexcept calls.
//
// Calls about events and page-locked memory concern no particular GPU, but take one all the same. If the
// calling thread has not chosen a device, CUDA would create a context on GPU 0 for such a call, and a context
// takes about 500 MB of that GPU's memory. If the thread has chosen a device, the call leaves it unchanged,
// since the caller may rely on it.
#include <cstddef>
#include <cstdint>
#include <string>

#include "tapestry/core/cuda/device.h"

namespace tapestry::cuda {

class Runtime {
 public:
  virtual ~Runtime() = default;
  /// The number of GPUs that this process may use. If it is 0, writes the reason to `why_none`.
  virtual int gpu_count(std::string& why_none) = 0;
  /// Returns the properties of the GPU, with DeviceProperties::gpu left at 0.
  virtual DeviceProperties properties(int gpu) = 0;
  /// True if kernels on `gpu` can access the memory of the GPU `other`. Creates no context.
  virtual bool can_access(int gpu, int other) = 0;
  virtual MemoryInfo memory(int gpu) = 0;
  /// Makes `gpu` the current GPU of the calling thread for other libraries, such as NCCL.
  virtual void choose(int gpu) = 0;
  /// Blocks the host until all streams of the GPU have finished their work.
  virtual void synchronize(int gpu) = 0;

  /// Null if there is not enough memory.
  virtual void* allocate(int gpu, std::size_t bytes) = 0;
  /// Waits for the GPU to finish its work first.
  virtual void release(int gpu, void* data) noexcept = 0;
  /// Page-locked host memory that every GPU can access. Null if there is not enough memory.
  virtual void* allocate_host(int gpu, std::size_t bytes) = 0;
  virtual void release_host(int gpu, void* data) noexcept = 0;

  virtual void* create_stream(int gpu, bool urgent) = 0;
  virtual void destroy_stream(int gpu, void* stream) noexcept = 0;
  virtual bool stream_done(int gpu, void* stream) = 0;
  virtual void wait_for_stream(int gpu, void* stream) = 0;

  virtual void* create_event(int gpu, bool timing) = 0;
  virtual void destroy_event(int gpu, void* event) noexcept = 0;
  virtual void record_event(int gpu, void* event, void* stream) = 0;
  /// True for an event that was never recorded.
  virtual bool event_done(int gpu, void* event) = 0;
  virtual void wait_for_event(int gpu, void* event) = 0;
  /// Does not block the host.
  virtual void stream_waits(int gpu, void* stream, void* event) = 0;
  virtual double milliseconds_between(int gpu, void* begin, void* end) = 0;

  /// Copies within this GPU's memory, or between it and the host's.
  virtual void copy(int gpu, void* stream, void* to, const void* from, std::size_t bytes) = 0;
  /// Copies between two GPUs. `stream` belongs to `from_gpu`.
  virtual void copy_between(int to_gpu, void* to, int from_gpu, const void* from, std::size_t bytes,
                            void* stream) = 0;
  /// Copies `rows` rows of `width` bytes. Consecutive rows start `to_pitch` and `from_pitch` bytes apart;
  /// neither pitch is less than `width`.
  virtual void copy_rows(int gpu, void* stream, void* to, std::size_t to_pitch, const void* from,
                         std::size_t from_pitch, std::size_t width, std::size_t rows) = 0;

  /// Records the work that the stream is given from now on, instead of running it. Until the end, the calling
  /// thread may allocate memory and enqueue work in this stream, and may make no call that waits, asks an
  /// event or releases memory.
  virtual void begin_capture(int gpu, void* stream) = 0;
  /// Returns the recorded graph, ready to launch, and the number of its nodes.
  virtual void* end_capture(int gpu, void* stream, std::int64_t& nodes) = 0;
  /// Ends the recording and drops what was recorded. The stream then runs work as before.
  virtual void abandon_capture(int gpu, void* stream) noexcept = 0;
  virtual void launch_graph(int gpu, void* graph, void* stream) = 0;
  virtual void destroy_graph(int gpu, void* graph) noexcept = 0;
};

/// The CUDA runtime; null in a build without CUDA.
Runtime* cuda_runtime();

}  // namespace tapestry::cuda
