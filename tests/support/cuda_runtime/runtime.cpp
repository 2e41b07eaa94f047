// The stand-in CUDA runtime: the entry points that the library, its tests and the code that nvcc generates
// call. This file is compiled twice: into the stand-in for libcudart.so, and into tests_cuda_module, which
// therefore has its own copy of the variables below, like a library that links libcudart_static.a.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <utility>
#include <vector>

#include "tests/support/cuda_runtime/driver.h"
#include "tests/support/cuda_runtime/ptx.h"

namespace driver = stand_in::driver;

namespace {

constexpr int kLeastPriority = 0, kGreatestPriority = -5;
constexpr std::size_t kSharedLimit = std::size_t{48} << 10, kMostShared = std::size_t{227} << 10;

struct Function {
  stand_in::Kernel kernel;
  int number;     // the number of the kernel in the driver's list
  void** module;  // the handle of the fat binary that contains the kernel
  // The limit of dynamic shared memory, one entry per GPU. reset() keeps it, because modules set it only
  // once.
  std::map<int, std::size_t> shared_limit;
  bool has_entry = false;  // read_entry() was called
};

struct Copy {
  std::map<const void*, Function> functions;
  std::map<void**, const void*> fat_binaries;
};
Copy& copy() {
  static auto& one = *new Copy;
  return one;
}

struct CallConfiguration {
  dim3 grid, block;
  std::size_t shared_bytes;
  cudaStream_t stream;
};

struct Thread {
  int epoch = 0;
  int device = 0;
  cudaError_t last_error = cudaSuccess;
  std::vector<CallConfiguration> configurations;
};
Thread& thread() {
  static thread_local Thread one;
  if (const int epoch = driver::epoch(); one.epoch != epoch) one = {.epoch = epoch};  // after reset()
  return one;
}
int current() { return thread().device; }

cudaError_t noted(cudaError_t error) {
  if (error != cudaSuccess) thread().last_error = error;
  return error;
}

// Runs one API call: counts it, and returns the error that a test injected into it, or else the result of
// f().
template <class F>
cudaError_t call(const char* name, F f) {
  const std::lock_guard lock(driver::mutex());
  if (const cudaError_t error = driver::enter(name); error != cudaSuccess) return noted(error);
  if (driver::gpu_count() == 0) return noted(cudaErrorNoDevice);
  return noted(f());
}
// Runs an API call that uses the current device's context. CUDA creates the context at the first such call.
template <class F>
cudaError_t device_call(const char* name, F f) {
  return call(name, [&] {
    driver::make_context(current());
    return f();
  });
}
// Runs an API call that releases an object. The object is released even if an injected error is returned.
template <class F>
cudaError_t release_call(const char* name, F f) {
  const std::lock_guard lock(driver::mutex());
  const cudaError_t error = driver::enter(name), released = f();
  return noted(error != cudaSuccess ? error : released);
}

bool exists(int gpu) { return gpu >= 0 && gpu < driver::gpu_count(); }

struct ErrorText {
  cudaError_t error;
  const char *name, *text;
};
constexpr ErrorText kErrors[] = {
    {cudaSuccess, "cudaSuccess", "no error"},
    {cudaErrorInvalidValue, "cudaErrorInvalidValue", "invalid argument"},
    {cudaErrorMemoryAllocation, "cudaErrorMemoryAllocation", "out of memory"},
    {cudaErrorInvalidConfiguration, "cudaErrorInvalidConfiguration", "invalid configuration argument"},
    {cudaErrorInvalidPitchValue, "cudaErrorInvalidPitchValue", "invalid pitch argument"},
    {cudaErrorInsufficientDriver, "cudaErrorInsufficientDriver",
     "CUDA driver version is insufficient for CUDA runtime version"},
    {cudaErrorDevicesUnavailable, "cudaErrorDevicesUnavailable",
     "CUDA-capable device(s) is/are busy or unavailable"},
    {cudaErrorInvalidDeviceFunction, "cudaErrorInvalidDeviceFunction", "invalid device function"},
    {cudaErrorNoDevice, "cudaErrorNoDevice", "no CUDA-capable device is detected"},
    {cudaErrorInvalidDevice, "cudaErrorInvalidDevice", "invalid device ordinal"},
    {cudaErrorNoKernelImageForDevice, "cudaErrorNoKernelImageForDevice",
     "no kernel image is available for execution on the device"},
    {cudaErrorECCUncorrectable, "cudaErrorECCUncorrectable", "uncorrectable ECC error encountered"},
    {cudaErrorUnsupportedPtxVersion, "cudaErrorUnsupportedPtxVersion",
     "the provided PTX was compiled with an unsupported toolchain."},
    {cudaErrorInvalidResourceHandle, "cudaErrorInvalidResourceHandle", "invalid resource handle"},
    {cudaErrorNotReady, "cudaErrorNotReady", "device not ready"},
    {cudaErrorIllegalAddress, "cudaErrorIllegalAddress", "an illegal memory access was encountered"},
    {cudaErrorLaunchOutOfResources, "cudaErrorLaunchOutOfResources",
     "too many resources requested for launch"},
    {cudaErrorLaunchTimeout, "cudaErrorLaunchTimeout", "the launch timed out and was terminated"},
    {cudaErrorPeerAccessAlreadyEnabled, "cudaErrorPeerAccessAlreadyEnabled",
     "peer access is already enabled"},
    {cudaErrorAssert, "cudaErrorAssert", "device-side assert triggered"},
    {cudaErrorIllegalInstruction, "cudaErrorIllegalInstruction", "an illegal instruction was encountered"},
    {cudaErrorMisalignedAddress, "cudaErrorMisalignedAddress", "misaligned address"},
    {cudaErrorLaunchFailure, "cudaErrorLaunchFailure", "unspecified launch failure"},
    {cudaErrorStreamCaptureUnsupported, "cudaErrorStreamCaptureUnsupported",
     "operation not permitted when stream is capturing"},
    {cudaErrorStreamCaptureInvalidated, "cudaErrorStreamCaptureInvalidated",
     "operation failed due to a previous error during capture"},
    {cudaErrorStreamCaptureImplicit, "cudaErrorStreamCaptureImplicit",
     "operation would make the legacy stream depend on a capturing blocking stream"},
    {cudaErrorSystemNotReady, "cudaErrorSystemNotReady", "system not yet initialized"},
};
const ErrorText* find(cudaError_t error) {
  const auto* const found = std::find_if(std::begin(kErrors), std::end(kErrors),
                                         [&](const ErrorText& e) { return e.error == error; });
  return found == std::end(kErrors) ? nullptr : found;
}

cudaError_t launch(const char* name, const void* function, dim3 grid, dim3 block, std::size_t shared_bytes,
                   cudaStream_t stream, void** arguments) {
  return device_call(name, [&] {
    const auto found = copy().functions.find(function);
    if (found == copy().functions.end()) return cudaErrorInvalidDeviceFunction;
    Function& f = found->second;
    if (!std::exchange(f.has_entry, true)) stand_in::read_entry(f.kernel);
    const auto limit = f.shared_limit.find(current());
    return driver::launch(f.kernel, grid, block, shared_bytes,
                          limit == f.shared_limit.end() ? kSharedLimit : limit->second, stream, current(),
                          arguments);
  });
}

}  // namespace

extern "C" {

// ---- errors ----

cudaError_t cudaGetLastError() {
  const std::lock_guard lock(driver::mutex());
  if (driver::broken() != cudaSuccess) return driver::broken();
  return std::exchange(thread().last_error, cudaSuccess);
}
cudaError_t cudaPeekAtLastError() {
  const std::lock_guard lock(driver::mutex());
  return driver::broken() != cudaSuccess ? driver::broken() : thread().last_error;
}
const char* cudaGetErrorName(cudaError_t error) {
  const ErrorText* const found = find(error);
  return found ? found->name : "unrecognized error code";
}
const char* cudaGetErrorString(cudaError_t error) {
  const ErrorText* const found = find(error);
  return found ? found->text : "unrecognized error code";
}

// ---- devices ----

cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}
cudaError_t cudaDriverGetVersion(int* version) { return cudaRuntimeGetVersion(version); }
cudaError_t cudaGetDeviceCount(int* count) {
  return call("cudaGetDeviceCount", [&] {
    *count = driver::gpu_count();
    return cudaSuccess;
  });
}
cudaError_t cudaGetDevice(int* gpu) {
  return call("cudaGetDevice", [&] {
    *gpu = current();
    return cudaSuccess;
  });
}
cudaError_t cudaSetDevice(int gpu) {
  return call("cudaSetDevice", [&] {
    if (!exists(gpu))
      return driver::misused(cudaErrorInvalidDevice, "cudaSetDevice of a GPU that does not exist");
    thread().device = gpu;
    driver::make_context(gpu);
    return cudaSuccess;
  });
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* p, int gpu) {
  return call("cudaGetDeviceProperties", [&] {
    if (!exists(gpu)) return cudaErrorInvalidDevice;
    *p = cudaDeviceProp{};
    std::snprintf(p->name, sizeof p->name, "Stand-in %d", gpu);
    p->totalGlobalMem = driver::total_memory();
    p->major = 9;
    p->multiProcessorCount = 4;
    p->warpSize = 32;
    p->maxThreadsPerBlock = 1024;
    p->sharedMemPerBlock = kSharedLimit;
    p->sharedMemPerBlockOptin = kMostShared;
    return cudaSuccess;
  });
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int gpu) {
  return call("cudaDeviceGetAttribute", [&] {
    if (!exists(gpu)) return cudaErrorInvalidDevice;
    switch (attribute) {
      case cudaDevAttrMultiProcessorCount:
        *value = 4;
        return cudaSuccess;
      case cudaDevAttrComputeCapabilityMajor:
        *value = 9;
        return cudaSuccess;
      case cudaDevAttrComputeCapabilityMinor:
        *value = 0;
        return cudaSuccess;
      case cudaDevAttrMaxSharedMemoryPerBlockOptin:
        *value = static_cast<int>(kMostShared);
        return cudaSuccess;
      default:
        return driver::misused(cudaErrorInvalidValue, "a device attribute that the stand-in does not have");
    }
  });
}
cudaError_t cudaMemGetInfo(std::size_t* free, std::size_t* total) {
  return device_call("cudaMemGetInfo", [&] {
    *total = driver::total_memory();
    *free = *total - driver::used_memory(current());
    return cudaSuccess;
  });
}
cudaError_t cudaDeviceSynchronize() {
  return device_call("cudaDeviceSynchronize", [&] { return driver::synchronize_gpu(current()); });
}
cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  return device_call("cudaDeviceGetStreamPriorityRange", [&] {
    *least = kLeastPriority;
    *greatest = kGreatestPriority;
    return cudaSuccess;
  });
}
cudaError_t cudaDeviceCanAccessPeer(int* can, int gpu, int other) {
  return call("cudaDeviceCanAccessPeer", [&] {
    if (!exists(gpu) || !exists(other)) return cudaErrorInvalidDevice;
    *can = gpu != other;
    return cudaSuccess;
  });
}
cudaError_t cudaDeviceEnablePeerAccess(int other, unsigned flags) {
  return device_call("cudaDeviceEnablePeerAccess", [&] {
    return flags != 0 ? cudaErrorInvalidValue : driver::allow_access(current(), other);
  });
}

// ---- memory ----

cudaError_t cudaMalloc(void** data, std::size_t bytes) {
  return device_call("cudaMalloc", [&] { return driver::allocate(current(), bytes, data); });
}
cudaError_t cudaFree(void* data) {
  return release_call("cudaFree", [&] { return driver::release(data, false); });
}
cudaError_t cudaMallocAsync(void** data, std::size_t bytes, cudaStream_t stream) {
  return device_call("cudaMallocAsync", [&] {
    const int gpu = driver::gpu_of(stream, current());
    return gpu < 0 ? cudaErrorInvalidResourceHandle : driver::allocate(gpu, bytes, data);
  });
}
cudaError_t cudaFreeAsync(void* data, cudaStream_t stream) {
  return release_call("cudaFreeAsync", [&] { return driver::free_in_order(data, stream, current()); });
}
cudaError_t cudaHostAlloc(void** data, std::size_t bytes, unsigned flags) {
  return device_call("cudaHostAlloc",
                     [&] { return flags & ~7u ? cudaErrorInvalidValue : driver::allocate(-1, bytes, data); });
}
cudaError_t cudaMallocHost(void** data, std::size_t bytes) {
  return device_call("cudaMallocHost", [&] { return driver::allocate(-1, bytes, data); });
}
cudaError_t cudaFreeHost(void* data) {
  return release_call("cudaFreeHost", [&] { return driver::release(data, true); });
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream) {
  return device_call("cudaMemcpyAsync",
                     [&] { return driver::copy(to, bytes, from, bytes, bytes, 1, kind, stream, current()); });
}
cudaError_t cudaMemcpy(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind) {
  return device_call("cudaMemcpy", [&] {
    const cudaError_t error = driver::copy(to, bytes, from, bytes, bytes, 1, kind, nullptr, current());
    return error != cudaSuccess ? error : driver::synchronize(cudaStream_t(nullptr), current());
  });
}
cudaError_t cudaMemcpy2DAsync(void* to, std::size_t to_pitch, const void* from, std::size_t from_pitch,
                              std::size_t width, std::size_t rows, cudaMemcpyKind kind, cudaStream_t stream) {
  return device_call("cudaMemcpy2DAsync", [&] {
    if (to_pitch < width || from_pitch < width) return cudaErrorInvalidPitchValue;
    return driver::copy(to, to_pitch, from, from_pitch, width, rows, kind, stream, current());
  });
}
cudaError_t cudaMemcpyPeerAsync(void* to, int to_gpu, const void* from, int from_gpu, std::size_t bytes,
                                cudaStream_t stream) {
  return device_call("cudaMemcpyPeerAsync", [&] {
    if (!exists(to_gpu) || !exists(from_gpu)) return cudaErrorInvalidDevice;
    if (driver::owner_of(to) != to_gpu || driver::owner_of(from) != from_gpu)
      return driver::misused(cudaErrorInvalidValue, "cudaMemcpyPeerAsync of memory that is on another GPU");
    return driver::copy(to, bytes, from, bytes, bytes, 1, cudaMemcpyDeviceToDevice, stream, current());
  });
}
cudaError_t cudaMemsetAsync(void* to, int value, std::size_t bytes, cudaStream_t stream) {
  return device_call("cudaMemsetAsync", [&] { return driver::fill(to, value, bytes, stream, current()); });
}
cudaError_t cudaMemset(void* to, int value, std::size_t bytes) {
  return device_call("cudaMemset", [&] { return driver::fill(to, value, bytes, nullptr, current()); });
}

// ---- streams ----

cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int priority) {
  return device_call("cudaStreamCreateWithPriority", [&] {
    return driver::create_stream(current(), flags, std::clamp(priority, kGreatestPriority, kLeastPriority),
                                 stream);
  });
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
  return device_call("cudaStreamCreateWithFlags",
                     [&] { return driver::create_stream(current(), flags, kLeastPriority, stream); });
}
cudaError_t cudaStreamCreate(cudaStream_t* stream) {
  return device_call("cudaStreamCreate", [&] {
    return driver::create_stream(current(), cudaStreamDefault, kLeastPriority, stream);
  });
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  return release_call("cudaStreamDestroy", [&] { return driver::destroy_stream(stream); });
}
cudaError_t cudaStreamGetDevice(cudaStream_t stream, int* gpu) {
  return call("cudaStreamGetDevice", [&] {
    const int found = driver::gpu_of(stream, current());
    if (found < 0) return driver::misused(cudaErrorInvalidResourceHandle, "a stream that does not exist");
    *gpu = found;
    return cudaSuccess;
  });
}
cudaError_t cudaStreamGetPriority(cudaStream_t stream, int* priority) {
  return call("cudaStreamGetPriority", [&] {
    if (driver::gpu_of(stream, current()) < 0) return cudaErrorInvalidResourceHandle;
    *priority = driver::priority_of(stream);
    return cudaSuccess;
  });
}
cudaError_t cudaStreamGetFlags(cudaStream_t stream, unsigned* flags) {
  return call("cudaStreamGetFlags", [&] {
    if (driver::gpu_of(stream, current()) < 0) return cudaErrorInvalidResourceHandle;
    *flags = driver::flags_of(stream);
    return cudaSuccess;
  });
}
cudaError_t cudaStreamQuery(cudaStream_t stream) {
  return device_call("cudaStreamQuery", [&] { return driver::query(stream, current()); });
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  return device_call("cudaStreamSynchronize", [&] { return driver::synchronize(stream, current()); });
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags) {
  return device_call("cudaStreamWaitEvent", [&] {
    return flags != 0 ? cudaErrorInvalidValue : driver::wait(stream, current(), event);
  });
}
cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void* data) {
  return device_call("cudaLaunchHostFunc",
                     [&] { return driver::enqueue(stream, current(), [=] { function(data); }); });
}

// ---- captures ----

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode) {
  return device_call("cudaStreamBeginCapture",
                     [&] { return driver::begin_capture(stream, mode, current()); });
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  const std::lock_guard lock(driver::mutex());
  const cudaError_t error = driver::enter("cudaStreamEndCapture");
  const cudaError_t ended = driver::end_capture(stream, graph, current());
  if (error != cudaSuccess && *graph) {  // a capture that fails gives no graph
    driver::destroy_graph(*graph, false);
    *graph = nullptr;
  }
  return noted(error != cudaSuccess ? error : ended);
}
cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
  return call("cudaThreadExchangeStreamCaptureMode", [&] { return driver::exchange_mode(mode); });
}
cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t*, std::size_t* count) {
  return call("cudaGraphGetNodes", [&] { return driver::count_nodes(graph, count); });
}
cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t* ready, cudaGraph_t graph, unsigned long long) {
  return device_call("cudaGraphInstantiateWithFlags", [&] { return driver::instantiate(ready, graph); });
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t graph, cudaStream_t stream) {
  return device_call("cudaGraphLaunch", [&] { return driver::launch(graph, stream, current()); });
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t graph) {
  return release_call("cudaGraphExecDestroy", [&] { return driver::destroy_graph(graph, true); });
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  return release_call("cudaGraphDestroy", [&] { return driver::destroy_graph(graph, false); });
}

// ---- events ----

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  return device_call("cudaEventCreateWithFlags",
                     [&] { return driver::create_event(current(), flags, event); });
}
cudaError_t cudaEventCreate(cudaEvent_t* event) {
  return device_call("cudaEventCreate",
                     [&] { return driver::create_event(current(), cudaEventDefault, event); });
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  return release_call("cudaEventDestroy", [&] { return driver::destroy_event(event); });
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  return device_call("cudaEventRecord", [&] { return driver::record(event, stream, current()); });
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
  return device_call("cudaEventQuery", [&] { return driver::query(event); });
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  return device_call("cudaEventSynchronize", [&] { return driver::synchronize(event); });
}
cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t begin, cudaEvent_t end) {
  return device_call("cudaEventElapsedTime", [&] { return driver::elapsed(ms, begin, end); });
}

// ---- kernels ----

cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* config, const void* function, void** arguments) {
  return launch("cudaLaunchKernelExC", function, config->gridDim, config->blockDim, config->dynamicSmemBytes,
                config->stream, arguments);
}
cudaError_t cudaLaunchKernel(const void* function, dim3 grid, dim3 block, void** arguments,
                             std::size_t shared_bytes, cudaStream_t stream) {
  return launch("cudaLaunchKernel", function, grid, block, shared_bytes, stream, arguments);
}
cudaError_t cudaFuncSetAttribute(const void* function, cudaFuncAttribute attribute, int value) {
  return device_call("cudaFuncSetAttribute", [&] {
    const auto found = copy().functions.find(function);
    if (found == copy().functions.end()) return cudaErrorInvalidDeviceFunction;
    if (attribute != cudaFuncAttributeMaxDynamicSharedMemorySize) return cudaSuccess;
    if (value < 0 || static_cast<std::size_t>(value) > kMostShared) return cudaErrorInvalidValue;
    found->second.shared_limit[current()] = static_cast<std::size_t>(value);
    return cudaSuccess;
  });
}
cudaError_t cudaFuncGetName(const char** name, const void* function) {
  const std::lock_guard lock(driver::mutex());
  const auto found = copy().functions.find(function);
  if (found == copy().functions.end()) return noted(cudaErrorInvalidDeviceFunction);
  *name = found->second.kernel.symbol.c_str();
  return cudaSuccess;
}

// ---- what nvcc's code calls: registration when a module is loaded, and kernel<<<...>>>() ----

struct FatBinaryWrapper {
  int magic, version;
  const void* fat_binary;
  void* file;
};

void** __cudaRegisterFatBinary(void* wrapper) {
  const std::lock_guard lock(driver::mutex());
  auto** const handle = new void*(nullptr);
  copy().fat_binaries[handle] = static_cast<const FatBinaryWrapper*>(wrapper)->fat_binary;
  return handle;
}
void __cudaRegisterFatBinaryEnd(void**) {}
void __cudaUnregisterFatBinary(void** handle) {
  const std::lock_guard lock(driver::mutex());
  std::erase_if(copy().functions, [&](const auto& one) {
    if (one.second.module == handle) driver::remove_kernel(one.second.number);
    return one.second.module == handle;
  });
  copy().fat_binaries.erase(handle);
  delete handle;
}
void __cudaRegisterFunction(void** handle, const char* host_function, char*, const char* name, int, uint3*,
                            uint3*, dim3*, dim3*, int*) {
  const std::lock_guard lock(driver::mutex());
  if (copy().functions.contains(host_function)) return;
  stand_in::Kernel kernel{name, copy().fat_binaries.at(handle), std::nullopt, 0};
  const int number = driver::add_kernel(kernel);
  copy().functions[host_function] = {std::move(kernel), number, handle, {}, false};
}
void __cudaRegisterVar(void**, char*, char*, const char*, int, std::size_t, int, int) {}
char __cudaInitModule(void**) { return 1; }

unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, std::size_t shared_bytes, cudaStream_t stream) {
  thread().configurations.push_back({grid, block, shared_bytes, stream});
  return 0;
}
cudaError_t __cudaPopCallConfiguration(dim3* grid, dim3* block, std::size_t* shared_bytes, void* stream) {
  if (thread().configurations.empty()) return cudaErrorInvalidConfiguration;
  const CallConfiguration last = thread().configurations.back();
  thread().configurations.pop_back();
  *grid = last.grid;
  *block = last.block;
  *shared_bytes = last.shared_bytes;
  *static_cast<cudaStream_t*>(stream) = last.stream;
  return cudaSuccess;
}
// In this stand-in, a cudaKernel_t is the address of the host function.
cudaError_t __cudaGetKernel(cudaKernel_t* kernel, const void* function) {
  *kernel = reinterpret_cast<cudaKernel_t>(const_cast<void*>(function));
  return cudaSuccess;
}
cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void** arguments,
                               std::size_t shared_bytes, cudaStream_t stream) {
  return launch("cudaLaunchKernel", kernel, grid, block, shared_bytes, stream, arguments);
}

}  // extern "C"
