#pragma once
// Launches kernels through the CUDA runtime of the module that includes this header. A module is a program or
// a shared library. Each module that links the CUDA runtime statically has its own copy of the runtime, and a
// copy knows only the kernels of its own module: a launch through another copy fails with
// cudaErrorInvalidDeviceFunction.
//
// All functions here that call the runtime have hidden visibility. With default visibility the dynamic linker
// would merge the copies of all modules into one, which would call one module's runtime for all of them.
//
// The copies share each GPU's primary context. Streams are handles of the driver, so every copy accepts them.
// Error codes cross the module boundary as numbers and strings.
#include <cuda_runtime.h>

#include <cstddef>
#include <map>
#include <mutex>
#include <utility>

#include "tapestry/core/cuda/launch.h"

#define TAPESTRY_HIDDEN __attribute__((visibility("hidden")))

namespace tapestry::kernels::cuda::detail {

/// Makes the stream's GPU the current device of this module's runtime, and writes its number to `gpu`. Every
/// copy of the runtime remembers a current device per thread, so the library's cudaSetDevice does not set
/// this copy's.
TAPESTRY_HIDDEN inline cudaError_t use_gpu_of(cudaStream_t stream, int& gpu) {
  cudaError_t error = cudaGetDevice(&gpu);
  if (error != cudaSuccess || !stream) return error;
  // The library's own operations have noted the GPU of their stream. For other streams, CUDA is asked, which
  // is slower.
  int wanted = ::tapestry::cuda::noted_gpu(stream);
#if CUDART_VERSION >= 12080
  if (wanted < 0) error = cudaStreamGetDevice(stream, &wanted);
#else
  if (wanted < 0) wanted = gpu;  // older CUDA cannot query the GPU; the caller must have set it
#endif
  if (error == cudaSuccess && wanted != gpu) error = cudaSetDevice(gpu = wanted);
  return error;
}

/// Raises the kernel's limit of dynamic shared memory on the current device above 48 KiB. The limit belongs
/// to the kernel and the GPU and is shared by all threads. The recorded limits and the lock keep one thread
/// from lowering a limit that another thread has just raised.
TAPESTRY_HIDDEN inline cudaError_t allow_shared(const void* kernel, int gpu, std::size_t bytes) {
  struct Record {
    std::mutex mutex;
    std::map<std::pair<const void*, int>, std::size_t> limits;
  };
  static Record& record = *new Record;  // never freed: kernels may be launched during exit
  const std::lock_guard lock(record.mutex);
  std::size_t& limit = record.limits[{kernel, gpu}];
  if (bytes <= limit) return cudaSuccess;
  const cudaError_t error =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes));
  if (error == cudaSuccess) limit = bytes;
  return error;
}

/// Launches the kernel. Throws CudaError that names the kernel if CUDA reports an error, and OutOfMemoryError
/// if that error is cudaErrorMemoryAllocation. With TAPESTRY_SYNC_LAUNCHES=1 it also waits until the kernel
/// has run, so that an error inside the kernel is reported where the kernel was launched.
TAPESTRY_HIDDEN inline void launch_kernel(const void* kernel, dim3 grid, dim3 block, std::size_t shared_bytes,
                                          cudaStream_t stream, void** args) {
  constexpr std::size_t kDefaultLimit = std::size_t{48} << 10;
  int gpu = -1;
  cudaError_t error = use_gpu_of(stream, gpu);
  if (error == cudaSuccess && shared_bytes > kDefaultLimit) error = allow_shared(kernel, gpu, shared_bytes);
  const char* symbol = nullptr;
  const auto find_symbol = [&] {
    if (!symbol && cudaFuncGetName(&symbol, kernel) != cudaSuccess) symbol = nullptr;
  };
  const bool wait = ::tapestry::cuda::sync_launches();
  if (wait) find_symbol();  // look the name up now: it may be unavailable after the kernel fails
  if (error == cudaSuccess) {
    cudaLaunchConfig_t config{};
    config.gridDim = grid;
    config.blockDim = block;
    config.dynamicSmemBytes = shared_bytes;
    config.stream = stream;
    error = cudaLaunchKernelExC(&config, kernel, args);
  }
  if (error == cudaSuccess && wait) error = cudaStreamSynchronize(stream);
  if (error == cudaSuccess) return;
  find_symbol();
  static_cast<void>(cudaGetLastError());  // the error is reported here; later checks must not see it again
  ::tapestry::cuda::launch_failed(static_cast<int>(error), cudaGetErrorName(error), cudaGetErrorString(error),
                                  symbol, gpu);
}

}  // namespace tapestry::kernels::cuda::detail
