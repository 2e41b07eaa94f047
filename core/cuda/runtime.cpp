// The Runtime that calls CUDA. This is the only source file of core that includes CUDA's headers (through
// check.h). In a build without CUDA it is empty.
#include "tapestry/core/cuda/internal/runtime.h"

#ifndef TAPESTRY_HAS_CUDA

namespace tapestry::cuda {
Runtime* cuda_runtime() { return nullptr; }
}  // namespace tapestry::cuda

#else

#include <cxxabi.h>

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <mutex>
#include <set>
#include <string>
#include <string_view>
#include <utility>

#include "tapestry/core/cuda/internal/check.h"
#include "tapestry/core/cuda/launch.h"
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

[[noreturn]] void throw_failure(cudaError_t error, std::string call, const char* name, const char* text,
                                int gpu, const SourceLocation& where) {
  const Failure failure{
      .call = std::move(call), .gpu = gpu, .name = name, .text = text, .remedy = remedy(error)};
  if (error == cudaErrorMemoryAllocation) throw OutOfMemoryError(failure_text(failure, where));
  throw CudaError(failure_text(failure, where));
}

cudaStream_t stream_of(void* stream) { return static_cast<cudaStream_t>(stream); }
cudaEvent_t event_of(void* event) { return static_cast<cudaEvent_t>(event); }

// See note_stream(). CUDA may give a new stream the address of a destroyed one, so a note is valid only until
// the library destroys a stream.
struct NotedStream {
  const void* stream;
  int gpu;
  std::uint64_t at;  // the value of streams_destroyed
};
thread_local constinit NotedStream noted{nullptr, -1, 0};
constinit std::atomic<std::uint64_t> streams_destroyed{0};

// The GPU that this thread has chosen; -1 if it has chosen none: see runtime.h.
thread_local constinit int chosen = -1;
void use_any_gpu(int gpu) {
  if (chosen < 0) use_gpu(gpu);
}

// True while this thread captures. The mode of captures forbids allocations to the thread; they are safe all
// the same, because the graph does not record them (PyTorch's allocator does the same).
thread_local constinit bool captures = false;
class AllowAllocation {
 public:
  AllowAllocation() {
    if (captures) TAPESTRY_CUDA(cudaThreadExchangeStreamCaptureMode(&mode_));
  }
  ~AllowAllocation() {
    if (captures) static_cast<void>(cudaThreadExchangeStreamCaptureMode(&mode_));
  }
  AllowAllocation(const AllowAllocation&) = delete;
  AllowAllocation& operator=(const AllowAllocation&) = delete;

 private:
  cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;
};

// Calls f, which releases a CUDA object. CUDA finds the object's GPU itself, so f is called even if the GPU
// cannot be selected. Errors are dropped: they mean that the driver has failed, and then the object is freed
// when the process ends.
template <class F>
void release_on(int gpu, F f) noexcept {
  try {
    use_any_gpu(gpu);
  } catch (const Error&) {
  }
  static_cast<void>(f());
  static_cast<void>(cudaGetLastError());
}

// Returns true if the call succeeded and false if it returned the error `no`, such as cudaErrorNotReady.
// Throws for all other errors.
bool succeeded_or(cudaError_t no, cudaError_t error, const char* call,
                  const SourceLocation& where = SourceLocation::current()) {
  if (error == no) {
    static_cast<void>(cudaGetLastError());  // clears it for later checks
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
    else if (visible) why_none = concat({"CUDA_VISIBLE_DEVICES=\"", visible, "\" hides every GPU"});
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
  bool can_access(int gpu, int other) override {
    int can = 0;
    TAPESTRY_CUDA(cudaDeviceCanAccessPeer(&can, gpu, other));
    return can != 0;
  }
  MemoryInfo memory(int gpu) override {
    use_gpu(gpu);
    MemoryInfo info;
    TAPESTRY_CUDA(cudaMemGetInfo(&info.free, &info.total));
    return info;
  }
  void choose(int gpu) override { use_gpu(gpu); }
  void synchronize(int gpu) override {
    use_gpu(gpu);
    TAPESTRY_CUDA(cudaDeviceSynchronize());
  }

  void* allocate(int gpu, std::size_t bytes) override {
    use_gpu(gpu);
    const AllowAllocation allow;
    void* data = nullptr;
    const cudaError_t error = cudaMalloc(&data, bytes);
    return succeeded_or(cudaErrorMemoryAllocation, error, "cudaMalloc(&data, bytes)") ? data : nullptr;
  }
  void release(int gpu, void* data) noexcept override {
    release_on(gpu, [=] { return cudaFree(data); });
  }
  void* allocate_host(int gpu, std::size_t bytes) override {
    use_any_gpu(gpu);
    const AllowAllocation allow;
    void* data = nullptr;
    const cudaError_t error = cudaHostAlloc(&data, bytes, cudaHostAllocPortable);
    return succeeded_or(cudaErrorMemoryAllocation, error, "cudaHostAlloc(&data, bytes)") ? data : nullptr;
  }
  void release_host(int gpu, void* data) noexcept override {
    release_on(gpu, [=] { return cudaFreeHost(data); });
  }

  void* create_stream(int gpu, bool urgent) override {
    use_gpu(gpu);
    int least = 0, greatest = 0;
    TAPESTRY_CUDA(cudaDeviceGetStreamPriorityRange(&least, &greatest));
    cudaStream_t stream = nullptr;
    // cudaStreamNonBlocking: the stream need not synchronize with CUDA's null stream, which the library never
    // uses.
    TAPESTRY_CUDA(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, urgent ? greatest : least));
    return stream;
  }
  void destroy_stream(int gpu, void* stream) noexcept override {
    streams_destroyed.fetch_add(1, std::memory_order_relaxed);
    release_on(gpu, [=] { return cudaStreamDestroy(stream_of(stream)); });
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
  void destroy_event(int gpu, void* event) noexcept override {
    release_on(gpu, [=] { return cudaEventDestroy(event_of(event)); });
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

  void begin_capture(int gpu, void* stream) override {
    use_gpu(gpu);
    // Thread-local: other threads may go on to allocate and to wait.
    TAPESTRY_CUDA(cudaStreamBeginCapture(stream_of(stream), cudaStreamCaptureModeThreadLocal));
    captures = true;
  }
  void* end_capture(int gpu, void* stream, std::int64_t& nodes) override {
    captures = false;
    cudaGraph_t graph = nullptr;
    TAPESTRY_CUDA(cudaStreamEndCapture(stream_of(stream), &graph));
    struct Destroyed {
      cudaGraph_t graph;
      ~Destroyed() { static_cast<void>(cudaGraphDestroy(graph)); }
    } const destroyed{graph};
    use_gpu(gpu);
    std::size_t count = 0;
    TAPESTRY_CUDA(cudaGraphGetNodes(graph, nullptr, &count));
    cudaGraphExec_t ready = nullptr;
    TAPESTRY_CUDA(cudaGraphInstantiateWithFlags(&ready, graph, 0));
    nodes = static_cast<std::int64_t>(count);
    return ready;
  }
  void abandon_capture(int gpu, void* stream) noexcept override {
    captures = false;
    release_on(gpu, [=] {
      cudaGraph_t graph = nullptr;  // null if the driver has invalidated the capture
      const cudaError_t error = cudaStreamEndCapture(stream_of(stream), &graph);
      return graph ? cudaGraphDestroy(graph) : error;
    });
  }
  void launch_graph(int gpu, void* graph, void* stream) override {
    use_gpu(gpu);
    TAPESTRY_CUDA(cudaGraphLaunch(static_cast<cudaGraphExec_t>(graph), stream_of(stream)));
  }
  void destroy_graph(int gpu, void* graph) noexcept override {
    release_on(gpu, [=] { return cudaGraphExecDestroy(static_cast<cudaGraphExec_t>(graph)); });
  }

 private:
  // Enables direct access from `gpu`, the current device, to the memory of `other` if the hardware can.
  // Otherwise CUDA copies through the host.
  void allow_access(int gpu, int other) {
    const std::lock_guard lock(mutex_);
    if (!asked_.emplace(gpu, other).second) return;
    if (can_access(gpu, other))
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
  chosen = gpu;
}

void call_failed(cudaError_t error, const char* call, const SourceLocation& where) {
  int gpu = -1;
  if (cudaGetDevice(&gpu) != cudaSuccess) gpu = chosen;
  static_cast<void>(cudaGetLastError());  // the error is reported here; later checks must not see it again
  throw_failure(error, call, cudaGetErrorName(error), cudaGetErrorString(error), gpu, where);
}

void note_stream(const void* stream, int gpu) {
  noted = {stream, gpu, streams_destroyed.load(std::memory_order_relaxed)};
}

int noted_gpu(const void* stream) {
  const bool known = stream == noted.stream && noted.at == streams_destroyed.load(std::memory_order_relaxed);
  return known ? noted.gpu : -1;
}

bool sync_launches() {
  static const bool sync = [] {
    const char* const text = std::getenv("TAPESTRY_SYNC_LAUNCHES");
    return text && std::string_view(text) == "1";
  }();
  return sync;
}

void launch_failed(int code, const char* name, const char* text, const char* symbol, int gpu) {
  std::string kernel = "a kernel whose name CUDA does not give";
  if (symbol) {
    char* const readable = abi::__cxa_demangle(symbol, nullptr, nullptr, nullptr);
    kernel = readable ? readable : symbol;
    std::free(readable);
  }
  throw_failure(static_cast<cudaError_t>(code), "launch of " + kernel, name, text, gpu,
                SourceLocation::current());
}

Runtime* cuda_runtime() {
  static Runtime& one = *new CudaRuntime;
  return &one;
}

}  // namespace tapestry::cuda

#endif
