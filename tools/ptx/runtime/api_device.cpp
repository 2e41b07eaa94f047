// Entry points: errors and devices.
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <iterator>
#include <utility>

#include "tapestry/tools/ptx/runtime/api.h"
#include "tapestry/tools/ptx/runtime/missing.h"

using namespace stand_in::api;
namespace driver = stand_in::driver;

namespace stand_in::api {

Copy& copy() {
  static auto& one = *new Copy;
  return one;
}
Thread& thread() {
  static thread_local Thread one;
  if (const int epoch = driver::epoch(); one.epoch != epoch) {  // after reset()
    one = {};
    one.epoch = epoch;
  }
  return one;
}

int missing(const char* name) {
  return call(name, [&] {
    return driver::misused(cudaErrorNotSupported, std::string(name) + " is missing in this runtime");
  });
}

}  // namespace stand_in::api

namespace {

struct ErrorText {
  cudaError_t error;
  const char *name, *text;
};
constexpr ErrorText kErrors[] = {
#define TAPESTRY_CUDA_ERROR(name, text) {name, #name, text},
#include "tapestry/tools/ptx/runtime/errors.inc"
#undef TAPESTRY_CUDA_ERROR
};
const ErrorText* find(cudaError_t error) {
  const auto* const found = std::find_if(std::begin(kErrors), std::end(kErrors),
                                         [&](const ErrorText& e) { return e.error == error; });
  return found == std::end(kErrors) ? nullptr : found;
}

// Properties of the GPUs: those of an H100 where a program could depend on them, and few multiprocessors,
// because a program chooses its grids by their number.
void fill(cudaDeviceProp& p, int gpu) {
  p = cudaDeviceProp{};
  std::snprintf(p.name, sizeof p.name, "Tapestry PTX machine %d", gpu);
  p.uuid.bytes[0] = 'T';
  p.uuid.bytes[15] = static_cast<char>(gpu);
  p.totalGlobalMem = driver::total_memory();
  p.sharedMemPerBlock = kSharedLimit;
  p.regsPerBlock = kRegisters;
  p.warpSize = 32;
  p.memPitch = 0x7fffffff;
  p.maxThreadsPerBlock = kMaxThreads;
  p.maxThreadsDim[0] = p.maxThreadsDim[1] = 1024;
  p.maxThreadsDim[2] = 64;
  p.maxGridSize[0] = 0x7fffffff;
  p.maxGridSize[1] = p.maxGridSize[2] = 65535;
  p.totalConstMem = 64 << 10;
  p.major = 9;
  p.minor = 0;
  p.textureAlignment = 512;
  p.texturePitchAlignment = 32;
  p.multiProcessorCount = kMultiprocessors;
  p.canMapHostMemory = 1;
  p.concurrentKernels = 1;
  p.pciBusID = gpu + 1;
  p.asyncEngineCount = 2;
  p.unifiedAddressing = 1;
  p.memoryBusWidth = 5120;
  p.l2CacheSize = 50 << 20;
  p.persistingL2CacheMaxSize = 0;
  p.maxThreadsPerMultiProcessor = kThreadsOfMultiprocessor;
  p.streamPrioritiesSupported = 1;
  p.globalL1CacheSupported = p.localL1CacheSupported = 1;
  p.sharedMemPerMultiprocessor = kSharedOfMultiprocessor;
  p.regsPerMultiprocessor = kRegisters;
  p.managedMemory = 1;
  p.concurrentManagedAccess = 1;
  p.computePreemptionSupported = 1;
  p.canUseHostPointerForRegisteredMem = 1;
  p.cooperativeLaunch = 1;
  p.sharedMemPerBlockOptin = kMostShared;
  p.maxBlocksPerMultiProcessor = kBlocksOfMultiprocessor;
  p.reservedSharedMemPerBlock = kReservedShared;
  p.hostRegisterSupported = 1;
  p.memoryPoolsSupported = 1;
  p.clusterLaunch = 1;
}

// Null if this runtime does not know the attribute.
std::optional<int> attribute_of(cudaDeviceAttr attribute, int gpu) {
  cudaDeviceProp p;
  fill(p, gpu);
  const auto of = [](std::size_t n) { return static_cast<int>(std::min<std::size_t>(n, 0x7fffffff)); };
  switch (attribute) {
    case cudaDevAttrMaxThreadsPerBlock:
      return p.maxThreadsPerBlock;
    case cudaDevAttrMaxBlockDimX:
      return p.maxThreadsDim[0];
    case cudaDevAttrMaxBlockDimY:
      return p.maxThreadsDim[1];
    case cudaDevAttrMaxBlockDimZ:
      return p.maxThreadsDim[2];
    case cudaDevAttrMaxGridDimX:
      return p.maxGridSize[0];
    case cudaDevAttrMaxGridDimY:
      return p.maxGridSize[1];
    case cudaDevAttrMaxGridDimZ:
      return p.maxGridSize[2];
    case cudaDevAttrMaxSharedMemoryPerBlock:
      return of(p.sharedMemPerBlock);
    case cudaDevAttrTotalConstantMemory:
      return of(p.totalConstMem);
    case cudaDevAttrWarpSize:
      return p.warpSize;
    case cudaDevAttrMaxPitch:
      return of(p.memPitch);
    case cudaDevAttrMaxRegistersPerBlock:
      return p.regsPerBlock;
    case cudaDevAttrClockRate:
      return 1'000'000;  // kHz; nothing here has a clock
    case cudaDevAttrMemoryClockRate:
      return 1'000'000;
    case cudaDevAttrTextureAlignment:
      return of(p.textureAlignment);
    case cudaDevAttrMultiProcessorCount:
      return p.multiProcessorCount;
    case cudaDevAttrIntegrated:
      return 0;
    case cudaDevAttrCanMapHostMemory:
      return 1;
    case cudaDevAttrComputeMode:
      return cudaComputeModeDefault;
    case cudaDevAttrConcurrentKernels:
      return 1;
    case cudaDevAttrEccEnabled:
      return p.ECCEnabled;
    case cudaDevAttrPciBusId:
      return p.pciBusID;
    case cudaDevAttrPciDeviceId:
      return 0;
    case cudaDevAttrPciDomainId:
      return 0;
    case cudaDevAttrGlobalMemoryBusWidth:
      return p.memoryBusWidth;
    case cudaDevAttrL2CacheSize:
      return p.l2CacheSize;
    case cudaDevAttrMaxThreadsPerMultiProcessor:
      return p.maxThreadsPerMultiProcessor;
    case cudaDevAttrAsyncEngineCount:
      return p.asyncEngineCount;
    case cudaDevAttrUnifiedAddressing:
      return 1;
    case cudaDevAttrComputeCapabilityMajor:
      return p.major;
    case cudaDevAttrComputeCapabilityMinor:
      return p.minor;
    case cudaDevAttrStreamPrioritiesSupported:
      return 1;
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor:
      return of(p.sharedMemPerMultiprocessor);
    case cudaDevAttrMaxRegistersPerMultiprocessor:
      return p.regsPerMultiprocessor;
    case cudaDevAttrManagedMemory:
      return 1;
    case cudaDevAttrConcurrentManagedAccess:
      return 1;
    case cudaDevAttrComputePreemptionSupported:
      return 1;
    case cudaDevAttrCanUseHostPointerForRegisteredMem:
      return 1;
    case cudaDevAttrPageableMemoryAccess:
      return 0;
    case cudaDevAttrCooperativeLaunch:
      return 1;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
      return of(p.sharedMemPerBlockOptin);
    case cudaDevAttrHostRegisterSupported:
      return 1;
    case cudaDevAttrMaxBlocksPerMultiprocessor:
      return p.maxBlocksPerMultiProcessor;
    case cudaDevAttrReservedSharedMemoryPerBlock:
      return of(p.reservedSharedMemPerBlock);
    case cudaDevAttrMemoryPoolsSupported:
      return 1;
    case cudaDevAttrClusterLaunch:
      return 1;
    default:
      return std::nullopt;
  }
}

}  // namespace

extern "C" {

// ---- errors ----

cudaError_t cudaGetLastError() {
  const Lock lock(driver::mutex());
  if (driver::broken() != cudaSuccess) return driver::broken();
  return std::exchange(thread().last_error, cudaSuccess);
}
cudaError_t cudaPeekAtLastError() {
  const Lock lock(driver::mutex());
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
  *count = 0;
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
cudaError_t cudaInitDevice(int gpu, unsigned, unsigned) {
  return call("cudaInitDevice", [&] {
    if (!exists(gpu)) return cudaErrorInvalidDevice;
    driver::make_context(gpu);
    return cudaSuccess;
  });
}
cudaError_t cudaChooseDevice(int* gpu, const cudaDeviceProp*) {
  return call("cudaChooseDevice", [&] {
    *gpu = 0;
    return cudaSuccess;
  });
}
cudaError_t cudaSetDeviceFlags(unsigned flags) {
  return call("cudaSetDeviceFlags", [&] {
    thread().flags = flags;
    return cudaSuccess;
  });
}
cudaError_t cudaGetDeviceFlags(unsigned* flags) {
  return call("cudaGetDeviceFlags", [&] {
    *flags = thread().flags;
    return cudaSuccess;
  });
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* p, int gpu) {
  return call("cudaGetDeviceProperties", [&] {
    if (!exists(gpu)) return cudaErrorInvalidDevice;
    fill(*p, gpu);
    return cudaSuccess;
  });
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int gpu) {
  return call("cudaDeviceGetAttribute", [&] {
    if (!exists(gpu)) return cudaErrorInvalidDevice;
    const std::optional<int> found = attribute_of(attribute, gpu);
    if (!found)
      return driver::misused(cudaErrorInvalidValue, "a device attribute that this runtime does not have");
    *value = *found;
    return cudaSuccess;
  });
}
cudaError_t cudaDeviceGetLimit(std::size_t* value, cudaLimit limit) {
  return device_call("cudaDeviceGetLimit", [&] {
    switch (limit) {
      case cudaLimitStackSize:
        *value = 1024;
        return cudaSuccess;
      case cudaLimitPrintfFifoSize:
        *value = 1 << 20;
        return cudaSuccess;
      case cudaLimitMallocHeapSize:
        *value = 8 << 20;
        return cudaSuccess;
      default:
        return cudaErrorUnsupportedLimit;
    }
  });
}
cudaError_t cudaDeviceSetLimit(cudaLimit limit, std::size_t) {
  return device_call("cudaDeviceSetLimit", [&] {
    const bool known = limit == cudaLimitStackSize || limit == cudaLimitPrintfFifoSize ||
                       limit == cudaLimitMallocHeapSize || limit == cudaLimitPersistingL2CacheSize;
    return known ? cudaSuccess : cudaErrorUnsupportedLimit;
  });
}
cudaError_t cudaDeviceGetCacheConfig(cudaFuncCache* config) {
  *config = cudaFuncCachePreferNone;
  return cudaSuccess;
}
cudaError_t cudaDeviceSetCacheConfig(cudaFuncCache) { return cudaSuccess; }
cudaError_t cudaDeviceGetPCIBusId(char* id, int length, int gpu) {
  return call("cudaDeviceGetPCIBusId", [&] {
    if (!exists(gpu) || length < 13) return cudaErrorInvalidValue;
    std::snprintf(id, static_cast<std::size_t>(length), "0000:%02x:00.0", static_cast<unsigned>(gpu + 1));
    return cudaSuccess;
  });
}
cudaError_t cudaDeviceGetByPCIBusId(int* gpu, const char* id) {
  return call("cudaDeviceGetByPCIBusId", [&] {
    unsigned bus = 0;
    if (std::sscanf(id, "0000:%02x:00.0", &bus) != 1 || !exists(static_cast<int>(bus) - 1))
      return cudaErrorInvalidValue;
    *gpu = static_cast<int>(bus) - 1;
    return cudaSuccess;
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
cudaError_t cudaDeviceReset() {
  return device_call("cudaDeviceReset", [&] { return driver::reset_gpu(current()); });
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
cudaError_t cudaDeviceGetP2PAttribute(int* value, cudaDeviceP2PAttr attribute, int gpu, int other) {
  return call("cudaDeviceGetP2PAttribute", [&] {
    if (!exists(gpu) || !exists(other) || gpu == other) return cudaErrorInvalidDevice;
    *value = attribute != cudaDevP2PAttrPerformanceRank;
    return cudaSuccess;
  });
}
cudaError_t cudaDeviceEnablePeerAccess(int other, unsigned flags) {
  return device_call("cudaDeviceEnablePeerAccess", [&] {
    return flags != 0 ? cudaErrorInvalidValue : driver::allow_access(current(), other);
  });
}
cudaError_t cudaDeviceDisablePeerAccess(int other) {
  return device_call("cudaDeviceDisablePeerAccess", [&] { return driver::deny_access(current(), other); });
}
cudaError_t cudaProfilerStart() { return cudaSuccess; }
cudaError_t cudaProfilerStop() { return cudaSuccess; }

}  // extern "C"
