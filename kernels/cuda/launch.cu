// How kernels reach the GPU.
#include <cxxabi.h>

#include <cstdlib>
#include <functional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "tapestry/core/cuda/internal/check.h"
#include "tapestry/core/cuda/internal/devices.h"
#include "tapestry/core/stream.h"
#include "tapestry/kernels/cuda/portable.cuh"
#include "tapestry/kernels/slot.h"

namespace tapestry::kernels::cuda {
namespace {

/// What every kernel may have without asking.
constexpr std::size_t kUsualShared = std::size_t{48} << 10;

bool sync_launches() {
  static const bool sync = [] {
    const char* const text = std::getenv("TAPESTRY_SYNC_LAUNCHES");
    return text && std::string_view(text) == "1";
  }();
  return sync;
}

/// Lets the kernel have more shared memory than usual, on this thread's GPU. The driver, which takes a lock
/// to hear of it, is told once.
cudaError_t allow_shared(const void* kernel, std::size_t bytes) {
  struct Hash {
    std::size_t operator()(const std::pair<const void*, int>& key) const {
      return std::hash<const void*>()(key.first) + static_cast<std::size_t>(key.second);
    }
  };
  static thread_local std::unordered_map<std::pair<const void*, int>, std::size_t, Hash> allowed;
  int gpu = 0;
  if (const cudaError_t error = cudaGetDevice(&gpu); error != cudaSuccess) return error;
  std::size_t& most = allowed[{kernel, gpu}];
  if (bytes <= most) return cudaSuccess;
  const cudaError_t error =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes));
  if (error == cudaSuccess) most = bytes;
  return error;
}

std::string name_of(const void* kernel) {
  const char* symbol = nullptr;
  if (cudaFuncGetName(&symbol, kernel) != cudaSuccess || !symbol) return "a kernel without a name";
  char* const readable = abi::__cxa_demangle(symbol, nullptr, nullptr, nullptr);
  std::string name = readable ? readable : symbol;
  std::free(readable);
  return name;
}

}  // namespace

void launch_kernel(const void* kernel, dim3 grid, dim3 block, std::size_t shared_bytes, cudaStream_t stream,
                   void** args) {
  cudaError_t error = cudaSuccess;
  if (shared_bytes > kUsualShared) error = allow_shared(kernel, shared_bytes);
  if (error == cudaSuccess) {
    cudaLaunchConfig_t config{};
    config.gridDim = grid;
    config.blockDim = block;
    config.dynamicSmemBytes = shared_bytes;
    config.stream = stream;
    error = cudaLaunchKernelExC(&config, kernel, args);
  }
  if (error == cudaSuccess && sync_launches()) error = cudaStreamSynchronize(stream);
  if (error != cudaSuccess)
    ::tapestry::cuda::call_failed(error, ("launch of " + name_of(kernel)).c_str(), SourceLocation::current());
}

cudaStream_t kernel_stream() {
  const Stream stream = current_stream(kernel_device);
  ::tapestry::cuda::use_gpu(::tapestry::cuda::devices().at(kernel_device).gpu());
  return static_cast<cudaStream_t>(stream.native());
}

}  // namespace tapestry::kernels::cuda
