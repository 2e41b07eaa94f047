#pragma once
// What the entry points (api_*.cpp) share. They are compiled twice: into libcudart.so, and into
// tests_cuda_module, which therefore has its own copy of the variables below, like a library that links
// libcudart_static.a.
#include <cuda_runtime_api.h>

#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "tapestry/tools/ptx/runtime/driver.h"

namespace stand_in::api {

using stand_in::kMultiprocessors;
constexpr int kLeastPriority = 0, kGreatestPriority = -5;
// The limits of an H100 (CUDA C++ Programming Guide, "Compute Capabilities").
constexpr std::size_t kSharedLimit = std::size_t{48} << 10, kMostShared = std::size_t{227} << 10,
                      kSharedOfMultiprocessor = std::size_t{228} << 10, kReservedShared = 1 << 10;
constexpr int kThreadsOfMultiprocessor = 2048, kBlocksOfMultiprocessor = 32, kMaxThreads = 1024;
constexpr int kRegisters = 65536;

struct Function {
  Kernel kernel;
  int number;     // the number of the kernel in the driver's list
  void** module;  // the handle of the fat binary that contains the kernel
  // The limit of dynamic shared memory, one entry per GPU. reset() keeps it, because modules set it only
  // once.
  std::map<int, std::size_t> shared_limit = {};
  bool has_entry = false;  // read_entry() was called
  bool large_clusters = false;
};
struct Symbol {
  std::string name;
  void** module;
  std::size_t bytes;
};

struct Copy {
  std::map<const void*, Function> functions;
  std::map<const void*, Symbol> symbols;
  std::map<void**, const void*> fat_binaries;
};
Copy& copy();

struct CallConfiguration {
  dim3 grid, block;
  std::size_t shared_bytes;
  cudaStream_t stream;
};

struct Thread {
  int epoch = 0;
  int device = 0;
  unsigned flags = 0;
  cudaError_t last_error = cudaSuccess;
  std::vector<CallConfiguration> configurations = {};
};
Thread& thread();
inline int current() { return thread().device; }

inline cudaError_t noted(cudaError_t error) {
  if (error != cudaSuccess) thread().last_error = error;
  return error;
}

using Lock = std::lock_guard<driver::Mutex>;

/// Runs one API call: counts it, and returns the error that a test injected into it, or else the result of
/// f().
template <class F>
cudaError_t call(const char* name, F f) {
  const Lock lock(driver::mutex());
  if (const cudaError_t error = driver::enter(name); error != cudaSuccess) return noted(error);
  if (driver::gpu_count() == 0) return noted(cudaErrorNoDevice);
  return noted(f());
}
/// Runs an API call that uses the current device's context. CUDA creates the context at the first such call.
template <class F>
cudaError_t device_call(const char* name, F f) {
  return call(name, [&] {
    driver::make_context(current());
    return f();
  });
}
/// Runs an API call that releases an object. The object is released even if an injected error is returned.
template <class F>
cudaError_t release_call(const char* name, F f) {
  const Lock lock(driver::mutex());
  const cudaError_t error = driver::enter(name), released = f();
  return noted(error != cudaSuccess ? error : released);
}
/// Makes an operation with make(&operation) and enqueues it.
template <class F>
cudaError_t enqueue(cudaStream_t stream, F make) {
  driver::Operation operation;
  if (const cudaError_t error = make(&operation); error != cudaSuccess) return error;
  return driver::enqueue(stream, current(), std::move(operation));
}

inline bool exists(int gpu) { return gpu >= 0 && gpu < driver::gpu_count(); }
/// The registered kernel; null if the program has not registered it.
Function* function_of(const void* function);
/// The address of a variable on the current GPU.
cudaError_t address_of_symbol(const void* symbol, void** address, std::size_t* bytes);

/// Programs that are compiled with --default-stream per-thread call other names, for which a null stream is
/// the thread's own.
inline cudaStream_t own(cudaStream_t stream) { return stream ? stream : cudaStreamPerThread; }

}  // namespace stand_in::api
