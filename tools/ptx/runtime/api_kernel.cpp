// Entry points: kernels, occupancy, the driver's functions, and what code that nvcc generated calls.
#include <algorithm>
#include <cstring>
#include <utility>

#include "tapestry/tools/ptx/runtime/api.h"
#include "tapestry/tools/ptx/runtime/fat_binary.h"

using namespace stand_in::api;
namespace driver = stand_in::driver;

namespace stand_in::api {

Function* function_of(const void* function) {
  const auto found = copy().functions.find(function);
  if (found == copy().functions.end()) return nullptr;
  if (!std::exchange(found->second.has_entry, true)) read_entry(found->second.kernel);
  return &found->second;
}
cudaError_t address_of_symbol(const void* symbol, void** address, std::size_t* bytes) {
  const auto found = copy().symbols.find(symbol);
  if (found == copy().symbols.end()) return cudaErrorInvalidSymbol;
  const Symbol& s = found->second;
  return driver::find_variable(copy().fat_binaries.at(s.module), s.name, current(), address, bytes);
}

}  // namespace stand_in::api

namespace {

std::size_t shared_limit_of(const Function& f) {
  const auto limit = f.shared_limit.find(current());
  return limit == f.shared_limit.end() ? kSharedLimit : limit->second;
}

struct Attributes {
  dim3 cluster{0, 0, 0};
  bool cooperative = false;
};

// Blocks that are resident on a multiprocessor at a time, by threads and shared memory. Registers are known
// to ptxas only, so they do not limit it here.
int resident_blocks(const Function& f, int threads, std::size_t dynamic_shared) {
  if (threads <= 0 || threads > kMaxThreads) return 0;
  const std::size_t shared =
      dynamic_shared + driver::facts_of(f.kernel, current()).static_shared + kReservedShared;
  const int by_shared = static_cast<int>(kSharedOfMultiprocessor / shared);
  return std::min(
      {kBlocksOfMultiprocessor, kThreadsOfMultiprocessor / ((threads + 31) / 32 * 32), by_shared});
}

cudaError_t launch(const char* name, const void* function, dim3 grid, dim3 block, std::size_t shared_bytes,
                   cudaStream_t stream, void** arguments, Attributes attributes = {}) {
  return device_call(name, [&] {
    Function* const f = function_of(function);
    if (!f) return cudaErrorInvalidDeviceFunction;
    const std::uint64_t most = std::uint64_t{kMultiprocessors} *
                               static_cast<std::uint64_t>(resident_blocks(
                                   *f, static_cast<int>(block.x * block.y * block.z), shared_bytes));
    if (attributes.cooperative && std::uint64_t{grid.x} * grid.y * grid.z > most) {
      const std::string why = "the cooperative launch of '" + f->kernel.symbol +
                              "' is refused: of its blocks, " + std::to_string(most) +
                              " run at the same time";
      return driver::epoch() > 0 ? cudaErrorCooperativeLaunchTooLarge
                                 : driver::misused(cudaErrorCooperativeLaunchTooLarge, why);
    }
    return enqueue(stream, [&](driver::Operation* made) {
      return driver::make_launch(f->kernel, grid, block, attributes.cluster, attributes.cooperative,
                                 shared_bytes, shared_limit_of(*f), stream, current(), arguments, made);
    });
  });
}

}  // namespace

extern "C" {

// ---- launches ----

cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* config, const void* function, void** arguments) {
  Attributes attributes;
  for (unsigned i = 0; i < config->numAttrs; ++i) {
    const cudaLaunchAttribute& a = config->attrs[i];
    if (a.id == cudaLaunchAttributeClusterDimension)
      attributes.cluster = dim3(a.val.clusterDim.x, a.val.clusterDim.y, a.val.clusterDim.z);
    if (a.id == cudaLaunchAttributeCooperative) attributes.cooperative = a.val.cooperative != 0;
    // The others do not change what a kernel computes: work starts as late as it may, and no earlier launch
    // overlaps with a later one in its stream.
  }
  return launch("cudaLaunchKernelExC", function, config->gridDim, config->blockDim, config->dynamicSmemBytes,
                config->stream, arguments, attributes);
}
cudaError_t cudaLaunchKernelExC_ptsz(const cudaLaunchConfig_t* config, const void* function,
                                     void** arguments) {
  cudaLaunchConfig_t changed = *config;
  changed.stream = own(config->stream);
  return cudaLaunchKernelExC(&changed, function, arguments);
}
cudaError_t cudaLaunchKernel(const void* function, dim3 grid, dim3 block, void** arguments,
                             std::size_t shared_bytes, cudaStream_t stream) {
  return launch("cudaLaunchKernel", function, grid, block, shared_bytes, stream, arguments);
}
cudaError_t cudaLaunchKernel_ptsz(const void* function, dim3 grid, dim3 block, void** arguments,
                                  std::size_t shared_bytes, cudaStream_t stream) {
  return cudaLaunchKernel(function, grid, block, arguments, shared_bytes, own(stream));
}
cudaError_t cudaLaunchCooperativeKernel(const void* function, dim3 grid, dim3 block, void** arguments,
                                        std::size_t shared_bytes, cudaStream_t stream) {
  return launch("cudaLaunchCooperativeKernel", function, grid, block, shared_bytes, stream, arguments,
                {{0, 0, 0}, true});
}
cudaError_t cudaLaunchCooperativeKernel_ptsz(const void* function, dim3 grid, dim3 block, void** arguments,
                                             std::size_t shared_bytes, cudaStream_t stream) {
  return cudaLaunchCooperativeKernel(function, grid, block, arguments, shared_bytes, own(stream));
}

// ---- kernels ----

cudaError_t cudaFuncSetAttribute(const void* function, cudaFuncAttribute attribute, int value) {
  return device_call("cudaFuncSetAttribute", [&] {
    Function* const f = function_of(function);
    if (!f) return cudaErrorInvalidDeviceFunction;
    if (attribute == cudaFuncAttributeNonPortableClusterSizeAllowed) f->large_clusters = value != 0;
    if (attribute != cudaFuncAttributeMaxDynamicSharedMemorySize) return cudaSuccess;
    const std::size_t fixed = driver::facts_of(f->kernel, current()).static_shared;
    if (value < 0 || static_cast<std::size_t>(value) + fixed > kMostShared) return cudaErrorInvalidValue;
    f->shared_limit[current()] = static_cast<std::size_t>(value);
    return cudaSuccess;
  });
}
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* to, const void* function) {
  return device_call("cudaFuncGetAttributes", [&] {
    const Function* const f = function_of(function);
    if (!f) return cudaErrorInvalidDeviceFunction;
    const driver::KernelFacts facts = driver::facts_of(f->kernel, current());
    *to = {};
    to->sharedSizeBytes = facts.static_shared;
    to->localSizeBytes = facts.local;
    to->maxThreadsPerBlock =
        f->kernel.max_threads != 0 ? static_cast<int>(f->kernel.max_threads) : kMaxThreads;
    to->ptxVersion = facts.ptx_version;
    to->binaryVersion = 90;
    to->maxDynamicSharedSizeBytes = static_cast<int>(shared_limit_of(*f));
    to->preferredShmemCarveout = -1;
    to->nonPortableClusterSizeAllowed = f->large_clusters;
    return cudaSuccess;
  });
}
cudaError_t cudaFuncGetParamInfo(const void* function, std::size_t index, std::size_t* offset,
                                 std::size_t* bytes) {
  return device_call("cudaFuncGetParamInfo", [&] {
    const Function* const f = function_of(function);
    if (!f) return cudaErrorInvalidDeviceFunction;
    if (!f->kernel.parameters || index >= f->kernel.parameters->size()) return cudaErrorInvalidValue;
    *offset = (*f->kernel.parameters)[index].offset;
    if (bytes) *bytes = (*f->kernel.parameters)[index].bytes;
    return cudaSuccess;
  });
}
cudaError_t cudaFuncGetName(const char** name, const void* function) {
  const Lock lock(driver::mutex());
  const Function* const f = function_of(function);
  if (!f) return noted(cudaErrorInvalidDeviceFunction);
  *name = f->kernel.symbol.c_str();
  return cudaSuccess;
}
cudaError_t cudaFuncSetCacheConfig(const void*, cudaFuncCache) { return cudaSuccess; }
// In this runtime, handles of kernels are the addresses of their host functions.
cudaError_t cudaGetFuncBySymbol(cudaFunction_t* handle, const void* function) {
  return device_call("cudaGetFuncBySymbol", [&] {
    if (!function_of(function)) return cudaErrorInvalidDeviceFunction;
    *handle = reinterpret_cast<cudaFunction_t>(const_cast<void*>(function));
    return cudaSuccess;
  });
}
cudaError_t cudaGetKernel(cudaKernel_t* handle, const void* function) {
  return device_call("cudaGetKernel", [&] {
    if (!function_of(function)) return cudaErrorInvalidDeviceFunction;
    *handle = reinterpret_cast<cudaKernel_t>(const_cast<void*>(function));
    return cudaSuccess;
  });
}

// ---- occupancy ----

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* blocks, const void* function,
                                                                   int threads, std::size_t shared_bytes,
                                                                   unsigned) {
  return device_call("cudaOccupancyMaxActiveBlocksPerMultiprocessor", [&] {
    const Function* const f = function_of(function);
    if (!f) return cudaErrorInvalidDeviceFunction;
    *blocks = resident_blocks(*f, threads, shared_bytes);
    return cudaSuccess;
  });
}
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, const void* function, int threads,
                                                          std::size_t shared_bytes) {
  return cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(blocks, function, threads, shared_bytes, 0);
}
cudaError_t cudaOccupancyAvailableDynamicSMemPerBlock(std::size_t* bytes, const void* function, int blocks,
                                                      int) {
  return device_call("cudaOccupancyAvailableDynamicSMemPerBlock", [&] {
    const Function* const f = function_of(function);
    if (!f) return cudaErrorInvalidDeviceFunction;
    if (blocks < 1 || blocks > kBlocksOfMultiprocessor) return cudaErrorInvalidValue;
    const std::size_t each = kSharedOfMultiprocessor / static_cast<std::size_t>(blocks),
                      taken = kReservedShared + driver::facts_of(f->kernel, current()).static_shared;
    *bytes = std::min(each > taken ? each - taken : 0, kMostShared);
    return cudaSuccess;
  });
}
cudaError_t cudaOccupancyMaxPotentialClusterSize(int* blocks, const void* function,
                                                 const cudaLaunchConfig_t*) {
  return device_call("cudaOccupancyMaxPotentialClusterSize", [&] {
    const Function* const f = function_of(function);
    if (!f) return cudaErrorInvalidDeviceFunction;
    *blocks = f->large_clusters ? 16 : 8;
    return cudaSuccess;
  });
}
cudaError_t cudaOccupancyMaxActiveClusters(int* clusters, const void* function,
                                           const cudaLaunchConfig_t* config) {
  return device_call("cudaOccupancyMaxActiveClusters", [&] {
    const Function* const f = function_of(function);
    if (!f) return cudaErrorInvalidDeviceFunction;
    unsigned blocks = 1;
    for (unsigned i = 0; i < config->numAttrs; ++i)
      if (const auto& a = config->attrs[i]; a.id == cudaLaunchAttributeClusterDimension)
        blocks = std::max(1u, a.val.clusterDim.x * a.val.clusterDim.y * a.val.clusterDim.z);
    const dim3 b = config->blockDim;
    *clusters = kMultiprocessors *
                resident_blocks(*f, static_cast<int>(b.x * b.y * b.z), config->dynamicSmemBytes) /
                static_cast<int>(blocks);
    return cudaSuccess;
  });
}

// ---- functions of the driver ----

cudaError_t cudaGetDriverEntryPointByVersion(const char* symbol, void** function, unsigned,
                                             unsigned long long, cudaDriverEntryPointQueryResult* result) {
  return call("cudaGetDriverEntryPointByVersion", [&] {
    *function = driver::entry_point(symbol);
    const bool found = *function != nullptr;
    if (result) *result = found ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
    return found || result ? cudaSuccess : cudaErrorSymbolNotFound;
  });
}
cudaError_t cudaGetDriverEntryPointByVersion_ptsz(const char* symbol, void** function, unsigned version,
                                                  unsigned long long flags,
                                                  cudaDriverEntryPointQueryResult* result) {
  return cudaGetDriverEntryPointByVersion(symbol, function, version, flags, result);
}
cudaError_t cudaGetDriverEntryPoint(const char* symbol, void** function, unsigned long long flags,
                                    cudaDriverEntryPointQueryResult* result) {
  return cudaGetDriverEntryPointByVersion(symbol, function, CUDART_VERSION, flags, result);
}
cudaError_t cudaGetDriverEntryPoint_ptsz(const char* symbol, void** function, unsigned long long flags,
                                         cudaDriverEntryPointQueryResult* result) {
  return cudaGetDriverEntryPoint(symbol, function, flags, result);
}

// ---- what nvcc's code calls: registration when a module is loaded, and kernel<<<...>>>() ----

struct FatBinaryWrapper {
  int magic, version;
  const void* fat_binary;
  void* file;
};

void** __cudaRegisterFatBinary(void* wrapper) {
  const Lock lock(driver::mutex());
  auto** const handle = new void*(nullptr);
  copy().fat_binaries[handle] = static_cast<const FatBinaryWrapper*>(wrapper)->fat_binary;
  return handle;
}
void __cudaRegisterFatBinaryEnd(void**) {}
void __cudaUnregisterFatBinary(void** handle) {
  const Lock lock(driver::mutex());
  std::erase_if(copy().functions, [&](const auto& one) {
    if (one.second.module == handle) driver::remove_kernel(one.second.number);
    return one.second.module == handle;
  });
  std::erase_if(copy().symbols, [&](const auto& one) { return one.second.module == handle; });
  driver::forget_module(copy().fat_binaries.at(handle));
  copy().fat_binaries.erase(handle);
  delete handle;
}
void __cudaRegisterFunction(void** handle, const char* host_function, char*, const char* name, int, uint3*,
                            uint3*, dim3*, dim3*, int*) {
  const Lock lock(driver::mutex());
  if (copy().functions.contains(host_function)) return;
  stand_in::Kernel kernel{name, copy().fat_binaries.at(handle), std::nullopt, 0};
  const int number = driver::add_kernel(kernel);
  copy().functions[host_function] = {std::move(kernel), number, handle};
}
void __cudaRegisterVar(void** handle, char* host_variable, char*, const char* name, int, std::size_t bytes,
                       int, int) {
  const Lock lock(driver::mutex());
  copy().symbols[host_variable] = {name, handle, bytes};
}
void __cudaRegisterManagedVar(void**, void**, char*, const char* name, int, std::size_t, int, int) {
  const Lock lock(driver::mutex());
  driver::misused(cudaErrorNotSupported,
                  std::string("the variable '") + name +
                      "' is __managed__, which this runtime lacks; use cudaMallocManaged()");
}
char __cudaInitModule(void**) { return 1; }

unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, std::size_t shared_bytes, cudaStream_t stream) {
  thread().configurations.push_back({grid, block, shared_bytes, stream});
  return 0;
}
cudaError_t __cudaPopCallConfiguration(dim3* grid, dim3* block, std::size_t* shared_bytes, void* stream) {
  if (thread().configurations.empty()) return cudaErrorMissingConfiguration;
  const CallConfiguration last = thread().configurations.back();
  thread().configurations.pop_back();
  *grid = last.grid;
  *block = last.block;
  *shared_bytes = last.shared_bytes;
  *static_cast<cudaStream_t*>(stream) = last.stream;
  return cudaSuccess;
}
cudaError_t __cudaGetKernel(cudaKernel_t* kernel, const void* function) {
  *kernel = reinterpret_cast<cudaKernel_t>(const_cast<void*>(function));
  return cudaSuccess;
}
cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void** arguments,
                               std::size_t shared_bytes, cudaStream_t stream) {
  return launch("cudaLaunchKernel", kernel, grid, block, shared_bytes, stream, arguments);
}
cudaError_t __cudaLaunchKernel_ptsz(cudaKernel_t kernel, dim3 grid, dim3 block, void** arguments,
                                    std::size_t shared_bytes, cudaStream_t stream) {
  return __cudaLaunchKernel(kernel, grid, block, arguments, shared_bytes, own(stream));
}

}  // extern "C"
