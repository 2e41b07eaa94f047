#pragma once
// The driver below the runtime: GPUs, memory, streams, events and their work. All copies of the runtime in a
// process share it, as copies of the CUDA runtime share the real driver. A copy of the runtime (api*.cpp) has
// only its registered kernels and variables, and per thread its current device and last error.
#include <driver_types.h>
#include <vector_types.h>

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "tapestry/tools/ptx/runtime/control.h"

namespace stand_in {

struct NodeParameters;

constexpr int kMultiprocessors = 4;  // of each GPU

namespace driver {

/// What a stream or a node of a graph does.
struct Operation {
  cudaGraphNodeType type = cudaGraphNodeTypeEmpty;
  /// False: it has not finished, because it waits for work of other streams or of the host; it is called
  /// again.
  std::function<bool()> run;
  std::shared_ptr<NodeParameters> parameters = nullptr;
  /// What it is, for messages; empty if it touches no memory.
  std::string what = {};
  /// Its number in the order of streams, once it is in a stream.
  std::uint32_t work = 0;
};

/// A recursive mutex that a thread can release as a whole while it waits.
class Mutex {
 public:
  void lock();
  void unlock();
  /// Releases the mutex, calls f(), and locks it as often as before.
  template <class F>
  void without(F f) {
    const int depth = release();
    f();
    restore(depth);
  }

 private:
  int release();
  void restore(int depth);
  std::mutex inner_;
  std::condition_variable free_;
  std::thread::id owner_;
  int depth_ = 0;
};
Mutex& mutex();

/// The number of calls of reset(). After a reset, copies of the runtime forget the state of their threads.
int epoch();
/// Counts a call of this function. Returns the error that a test injected into this call, or the sticky error
/// of an earlier call.
cudaError_t enter(const char* function);
/// The sticky error that all calls return after a kernel or an injected error broke the contexts, or
/// cudaSuccess.
cudaError_t broken();
/// Records an invalid call, and prints it if the program is not a test. Returns `error`.
cudaError_t misused(cudaError_t error, const std::string& what);

int gpu_count();
std::size_t total_memory();
std::size_t used_memory(int gpu);
/// Creates the context of the GPU.
void make_context(int gpu);

// ---- memory ----

/// Allocates memory of the GPU, page-locked host memory if `gpu` is -1, or managed memory.
cudaError_t allocate(int gpu, std::size_t bytes, void** data, bool managed = false, unsigned flags = 0);
cudaError_t release(void* data, bool host);
cudaError_t register_host(void* data, std::size_t bytes, unsigned flags);
cudaError_t unregister_host(void* data);
/// The GPU whose memory holds the address, -1 for page-locked memory, -2 for other memory.
int owner_of(const void* address);
cudaError_t attributes_of(const void* address, cudaPointerAttributes* to);
cudaError_t host_flags(const void* address, unsigned* flags);

cudaError_t allocate_in_order(int gpu, std::size_t bytes, void** data, cudaMemPool_t pool,
                              cudaStream_t stream, int current);
cudaError_t free_in_order(void* data, cudaStream_t stream, int current);
cudaError_t create_pool(int gpu, cudaMemPool_t* pool);
cudaError_t destroy_pool(cudaMemPool_t pool);
cudaError_t pool_of(int gpu, bool default_one, cudaMemPool_t* pool);
cudaError_t set_pool(int gpu, cudaMemPool_t pool);
cudaError_t pool_attribute(cudaMemPool_t pool, cudaMemPoolAttr attribute, std::uint64_t* get,
                           const std::uint64_t* set);

/// A box of bytes: `width` bytes in each of `rows` rows in each of `slices` slices.
struct Box {
  std::size_t width, rows = 1, slices = 1;
};
struct Side {
  void* data;
  std::size_t pitch = 0, slice = 0;  // bytes from a row to the next one, and from a slice to the next one
};
/// Makes the operation that copies a box. It checks ranges and direction at once. The copy runs when its
/// stream reaches it.
cudaError_t make_copy(Side to, Side from, Box box, cudaMemcpyKind kind, Operation* made);
cudaError_t make_fill(Side to, Box box, unsigned value, unsigned element, Operation* made);
cudaError_t make_host_function(cudaHostFn_t function, void* data, Operation* made);
/// Copies and returns when the host may reuse its memory.
cudaError_t copy_now(Side to, Side from, Box box, cudaMemcpyKind kind, cudaStream_t stream, int current);
cudaError_t allow_access(int gpu, int other);
cudaError_t deny_access(int gpu, int other);

// ---- streams ----

cudaError_t create_stream(int gpu, unsigned flags, int priority, cudaStream_t* stream);
cudaError_t destroy_stream(cudaStream_t stream);
/// The GPU of a live stream; -1 if there is no such stream. The null stream belongs to `current`.
int gpu_of(cudaStream_t stream, int current);
int priority_of(cudaStream_t stream, int current);
unsigned flags_of(cudaStream_t stream, int current);
std::uint64_t id_of(cudaStream_t stream, int current);
cudaError_t enqueue(cudaStream_t stream, int current, Operation operation);
/// CUDA makes progress while the host makes no calls, because the host may poll the result of a host function
/// or memory that it shares with the GPU. The first call of may_wait_by_itself() starts a thread, which
/// advances the streams if there is work and no call was noted for half a second. Other programs need no
/// second thread, with which every std::shared_ptr would count by atomics. end_progress() stops the thread.
void may_wait_by_itself();
void note_call();
void end_progress();
cudaError_t query(cudaStream_t stream, int current);
cudaError_t synchronize(cudaStream_t stream, int current);
cudaError_t synchronize_gpu(int gpu);
/// Releases everything of a GPU.
cudaError_t reset_gpu(int gpu);

cudaError_t create_event(int gpu, unsigned flags, cudaEvent_t* event);
cudaError_t destroy_event(cudaEvent_t event);
cudaError_t record(cudaEvent_t event, cudaStream_t stream, int current);
cudaError_t wait(cudaStream_t stream, int current, cudaEvent_t event);
cudaError_t query(cudaEvent_t event);
cudaError_t synchronize(cudaEvent_t event);
cudaError_t elapsed(float* ms, cudaEvent_t begin, cudaEvent_t end);

// ---- kernels ----

/// Adds a registered kernel; the number that it returns removes it.
int add_kernel(Kernel kernel);
void remove_kernel(int number);
void forget_module(const void* fat_binary);
/// Checks a launch and copies its arguments. `shared_limit` is the kernel's
/// cudaFuncAttributeMaxDynamicSharedMemorySize.
cudaError_t make_launch(const Kernel& kernel, dim3 grid, dim3 block, dim3 cluster, bool cooperative,
                        std::size_t shared_bytes, std::size_t shared_limit, cudaStream_t stream, int current,
                        void** arguments, Operation* made);
/// Makes the operation of a launch; a graph changes its grid, block and arguments.
Operation operation_of(Launch launch);
/// Facts of a kernel that the machine reads from its PTX. Zero if the kernel cannot be read.
struct KernelFacts {
  std::size_t static_shared = 0, local = 0;
  int ptx_version = 90;
};
KernelFacts facts_of(const Kernel& kernel, int gpu);
/// The address of a module's variable on a GPU, and its bytes; cudaErrorInvalidSymbol if there is none.
cudaError_t find_variable(const void* fat_binary, const std::string& name, int gpu, void** address,
                          std::size_t* bytes);

/// A function of the CUDA driver by its name, such as cuTensorMapEncodeTiled; null if this runtime lacks it.
void* entry_point(const char* name);

}  // namespace driver
}  // namespace stand_in
