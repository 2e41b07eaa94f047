// The one file of core that sees CUDA's headers, where they are found.
#include "tapestry/core/cuda/internal/runtime.h"

#ifndef TAPESTRY_HAS_CUDA

namespace tapestry::cuda {
Runtime* cuda_runtime() { return nullptr; }
}  // namespace tapestry::cuda

#else

#include <cstdlib>
#include <mutex>
#include <set>
#include <utility>

#include "tapestry/core/cuda/internal/check.h"
#include "tapestry/core/error.h"

namespace tapestry::cuda {
namespace {

Remedy remedy(cudaError_t error) {
  switch (error) {
    case cudaErrorMemoryAllocation:
      return Remedy::memory;
    case cudaErrorIllegalAddress:
    case cudaErrorMisalignedAddress:
    case cudaErrorLaunchFailure:
    case cudaErrorLaunchTimeout:
    case cudaErrorAssert:
    case cudaErrorIllegalInstruction:
    case cudaErrorInvalidAddressSpace:
    case cudaErrorInvalidPc:
    case cudaErrorHardwareStackError:
      return Remedy::kernel;
    case cudaErrorInsufficientDriver:
    case cudaErrorUnsupportedPtxVersion:
    case cudaErrorNoKernelImageForDevice:
      return Remedy::driver;
    case cudaErrorDevicesUnavailable:
    case cudaErrorECCUncorrectable:
    case cudaErrorSystemNotReady:
      return Remedy::device;
    default:
      return Remedy::none;
  }
}

cudaStream_t stream_of(void* stream) { return static_cast<cudaStream_t>(stream); }
cudaEvent_t event_of(void* event) { return static_cast<cudaEvent_t>(event); }

// Whether this thread has chosen a GPU: see runtime.h.
thread_local constinit bool has_chosen = false;
void use_any_gpu(int gpu) {
  if (!has_chosen) use_gpu(gpu);
}

// True for success, false for `no`.
bool succeeded_or(cudaError_t no, cudaError_t error, const char* call,
                  const SourceLocation& where = SourceLocation::current()) {
  if (error == no) {
    static_cast<void>(cudaGetLastError());  // it is no error, and no later call shall find it
    return false;
  }
  check_call(error, call, where);
  return true;
}

class CudaRuntime final : public Runtime {
 public:
  int gpu_count(std::string& why_none) override {
    int count = 0;
    const cudaError_t error = cudaGetDeviceCount(&count);
    if (error == cudaSuccess && count > 0) return count;
    static_cast<void>(cudaGetLastError());
    const char* const visible = std::getenv("CUDA_VISIBLE_DEVICES");
    if (error == cudaErrorInsufficientDriver)
      why_none = "there is no NVIDIA driver, or one too old for this library's CUDA " +
                 std::to_string(CUDART_VERSION / 1000) + "." + std::to_string(CUDART_VERSION % 100 / 10);
    else if (error != cudaSuccess && error != cudaErrorNoDevice)
      why_none = concat({"CUDA does not start: ", cudaGetErrorString(error)});
    else if (visible) why_none = concat({"CUDA_VISIBLE_DEVICES=\"", visible, "\" leaves none"});
    else why_none = "this machine has no GPU";
    return 0;
  }

  DeviceProperties properties(int gpu) override {
    cudaDeviceProp p{};
    TAPESTRY_CUDA(cudaGetDeviceProperties(&p, gpu));
    return {.name = p.name,
            .memory = p.totalGlobalMem,
            .major = p.major,
            .minor = p.minor,
            .multiprocessors = p.multiProcessorCount};
  }
  MemoryInfo memory(int gpu) override {
    use_gpu(gpu);
    MemoryInfo info;
    TAPESTRY_CUDA(cudaMemGetInfo(&info.free, &info.total));
    return info;
  }
  void synchronize(int gpu) override {
    use_gpu(gpu);
    TAPESTRY_CUDA(cudaDeviceSynchronize());
  }

  void* allocate(int gpu, std::size_t bytes) override {
    use_gpu(gpu);
    void* data = nullptr;
    const cudaError_t error = cudaMalloc(&data, bytes);
    return succeeded_or(cudaErrorMemoryAllocation, error, "cudaMalloc(&data, bytes)") ? data : nullptr;
  }
  void release(int gpu, void* data) noexcept override {
    try {
      use_gpu(gpu);
      static_cast<void>(cudaFree(data));
    } catch (const Error&) {  // the driver is gone, and the memory with it
    }
    static_cast<void>(cudaGetLastError());
  }
  void* allocate_host(int gpu, std::size_t bytes) override {
    use_any_gpu(gpu);
    void* data = nullptr;
    const cudaError_t error = cudaHostAlloc(&data, bytes, cudaHostAllocPortable);
    return succeeded_or(cudaErrorMemoryAllocation, error, "cudaHostAlloc(&data, bytes)") ? data : nullptr;
  }
  void release_host(int gpu, void* data) noexcept override {
    try {
      use_any_gpu(gpu);
      static_cast<void>(cudaFreeHost(data));
    } catch (const Error&) {  // as in release()
    }
    static_cast<void>(cudaGetLastError());
  }

  void* create_stream(int gpu, bool urgent) override {
    use_gpu(gpu);
    int least = 0, greatest = 0;
    TAPESTRY_CUDA(cudaDeviceGetStreamPriorityRange(&least, &greatest));
    cudaStream_t stream = nullptr;
    // Not in step with CUDA's own default stream, on which nothing of ours runs.
    TAPESTRY_CUDA(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, urgent ? greatest : least));
    return stream;
  }
  bool stream_done(int gpu, void* stream) override {
    use_gpu(gpu);
    return succeeded_or(cudaErrorNotReady, cudaStreamQuery(stream_of(stream)), "cudaStreamQuery(stream)");
  }
  void wait_for_stream(int gpu, void* stream) override {
    use_gpu(gpu);
    TAPESTRY_CUDA(cudaStreamSynchronize(stream_of(stream)));
  }

  void* create_event(int gpu, bool timing) override {
    use_gpu(gpu);
    cudaEvent_t event = nullptr;
    TAPESTRY_CUDA(cudaEventCreateWithFlags(&event, timing ? cudaEventDefault : cudaEventDisableTiming));
    return event;
  }
  void record_event(int gpu, void* event, void* stream) override {
    use_gpu(gpu);
    TAPESTRY_CUDA(cudaEventRecord(event_of(event), stream_of(stream)));
  }
  bool event_done(int gpu, void* event) override {
    use_any_gpu(gpu);
    return succeeded_or(cudaErrorNotReady, cudaEventQuery(event_of(event)), "cudaEventQuery(event)");
  }
  void wait_for_event(int gpu, void* event) override {
    use_any_gpu(gpu);
    TAPESTRY_CUDA(cudaEventSynchronize(event_of(event)));
  }
  void stream_waits(int gpu, void* stream, void* event) override {
    use_gpu(gpu);
    TAPESTRY_CUDA(cudaStreamWaitEvent(stream_of(stream), event_of(event), 0));
  }
  double milliseconds_between(int gpu, void* begin, void* end) override {
    use_any_gpu(gpu);
    float ms = 0;
    TAPESTRY_CUDA(cudaEventElapsedTime(&ms, event_of(begin), event_of(end)));
    return ms;
  }

  void copy(int gpu, void* stream, void* to, const void* from, std::size_t bytes) override {
    use_gpu(gpu);
    TAPESTRY_CUDA(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream_of(stream)));
  }
  void copy_between(int to_gpu, void* to, int from_gpu, const void* from, std::size_t bytes,
                    void* stream) override {
    use_gpu(from_gpu);
    allow_access(from_gpu, to_gpu);
    TAPESTRY_CUDA(cudaMemcpyPeerAsync(to, to_gpu, from, from_gpu, bytes, stream_of(stream)));
  }
  void copy_rows(int gpu, void* stream, void* to, std::size_t to_pitch, const void* from,
                 std::size_t from_pitch, std::size_t width, std::size_t rows) override {
    use_gpu(gpu);
    TAPESTRY_CUDA(
        cudaMemcpy2DAsync(to, to_pitch, from, from_pitch, width, rows, cudaMemcpyDefault, stream_of(stream)));
  }

 private:
  // Lets the GPU reach the other one's memory where the two are connected; else CUDA copies by way of the
  // host. The caller has chosen `gpu`.
  void allow_access(int gpu, int other) {
    const std::lock_guard lock(mutex_);
    if (!asked_.emplace(gpu, other).second) return;
    int can = 0;
    TAPESTRY_CUDA(cudaDeviceCanAccessPeer(&can, gpu, other));
    if (can)
      succeeded_or(cudaErrorPeerAccessAlreadyEnabled, cudaDeviceEnablePeerAccess(other, 0),
                   "cudaDeviceEnablePeerAccess(other, 0)");
  }

  std::mutex mutex_;
  std::set<std::pair<int, int> > asked_;
};

}  // namespace

void use_gpu(int gpu) {
  int now = 0;
  TAPESTRY_CUDA(cudaGetDevice(&now));
  if (now != gpu) TAPESTRY_CUDA(cudaSetDevice(gpu));
  has_chosen = true;
}

void call_failed(cudaError_t error, const char* call, const SourceLocation& where) {
  Failure failure{.call = call,
                  .name = cudaGetErrorName(error),
                  .text = cudaGetErrorString(error),
                  .remedy = remedy(error)};
  if (cudaGetDevice(&failure.gpu) != cudaSuccess) failure.gpu = -1;
  static_cast<void>(cudaGetLastError());  // a later check shall not find it again
  if (error == cudaErrorMemoryAllocation) throw OutOfMemoryError(failure_text(failure, where));
  throw CudaError(failure_text(failure, where));
}

Runtime* cuda_runtime() {
  static Runtime& one = *new CudaRuntime;
  return &one;
}

}  // namespace tapestry::cuda

#endif
