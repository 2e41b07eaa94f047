#pragma once
// The stand-in for the CUDA driver: GPUs, memory, streams, events and their work. All copies of the stand-in
// runtime in a process share it, as copies of the CUDA runtime share the real driver. A copy of the runtime
// (runtime.cpp) has only its registered kernels, and per thread its current device and last error.
#include <driver_types.h>
#include <vector_types.h>

#include <functional>
#include <mutex>
#include <string>

#include "tests/support/cuda_runtime/control.h"

namespace stand_in::driver {

using Work = std::function<void()>;

std::recursive_mutex& mutex();
/// The number of calls of reset(). After a reset, copies of the runtime forget the state of their threads.
int epoch();
/// Counts a call of this function. Returns the error that a test injected into this call, or the sticky error
/// of an earlier call.
cudaError_t enter(const char* function);
/// The sticky error that all calls return after a kernel or an injected error broke the contexts, or
/// cudaSuccess.
cudaError_t broken();
/// Records misuse and returns `error`.
cudaError_t misused(cudaError_t error, const std::string& what);

int gpu_count();
std::size_t total_memory();
std::size_t used_memory(int gpu);
/// Creates the context of the GPU.
void make_context(int gpu);

/// Allocates memory of the GPU, or page-locked host memory if `gpu` is -1.
cudaError_t allocate(int gpu, std::size_t bytes, void** data);
cudaError_t release(void* data, bool host);
/// The GPU whose memory holds the address, -1 for page-locked memory, -2 for other memory.
int owner_of(const void* address);

cudaError_t create_stream(int gpu, unsigned flags, int priority, cudaStream_t* stream);
cudaError_t destroy_stream(cudaStream_t stream);
/// The GPU of a live stream; -1 if there is no such stream. The null stream belongs to `current`.
int gpu_of(cudaStream_t stream, int current);
int priority_of(cudaStream_t stream);
unsigned flags_of(cudaStream_t stream);
cudaError_t enqueue(cudaStream_t stream, int current, Work work);
cudaError_t query(cudaStream_t stream, int current);
cudaError_t synchronize(cudaStream_t stream, int current);
cudaError_t synchronize_gpu(int gpu);

cudaError_t create_event(int gpu, unsigned flags, cudaEvent_t* event);
cudaError_t destroy_event(cudaEvent_t event);
cudaError_t record(cudaEvent_t event, cudaStream_t stream, int current);
cudaError_t wait(cudaStream_t stream, int current, cudaEvent_t event);
cudaError_t query(cudaEvent_t event);
cudaError_t synchronize(cudaEvent_t event);
cudaError_t elapsed(float* ms, cudaEvent_t begin, cudaEvent_t end);

/// Copies `rows` rows of `width` bytes. It checks ranges and direction at once. The copy runs when the stream
/// reaches it.
cudaError_t copy(void* to, std::size_t to_pitch, const void* from, std::size_t from_pitch, std::size_t width,
                 std::size_t rows, cudaMemcpyKind kind, cudaStream_t stream, int current);
cudaError_t fill(void* to, int value, std::size_t bytes, cudaStream_t stream, int current);
cudaError_t free_in_order(void* data, cudaStream_t stream, int current);
cudaError_t allow_access(int gpu, int other);

/// The error of a call that CUDA permits only outside of captures, or cudaSuccess. It invalidates the
/// capture. `relaxed`: the call is permitted to threads whose mode of captures is relaxed.
cudaError_t outside_of_captures(bool relaxed);
cudaError_t begin_capture(cudaStream_t stream, cudaStreamCaptureMode mode, int current);
cudaError_t end_capture(cudaStream_t stream, cudaGraph_t* graph, int current);
cudaError_t exchange_mode(cudaStreamCaptureMode* mode);
cudaError_t count_nodes(cudaGraph_t graph, std::size_t* count);
cudaError_t instantiate(cudaGraphExec_t* ready, cudaGraph_t graph);
cudaError_t launch(cudaGraphExec_t graph, cudaStream_t stream, int current);
cudaError_t destroy_graph(const void* graph, bool executable);

/// Adds a registered kernel; the number that it returns removes it.
int add_kernel(Kernel kernel);
void remove_kernel(int number);
/// Enqueues a kernel launch on a stream. `shared_limit` is the kernel's
/// cudaFuncAttributeMaxDynamicSharedMemorySize.
cudaError_t launch(const Kernel& kernel, dim3 grid, dim3 block, std::size_t shared_bytes,
                   std::size_t shared_limit, cudaStream_t stream, int current, void** arguments);

}  // namespace stand_in::driver
