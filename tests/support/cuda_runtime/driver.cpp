#include "tests/support/cuda_runtime/driver.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <exception>
#include <memory>
#include <utility>

#include "tests/support/cuda_runtime/state.h"

namespace stand_in {
namespace {

bool is_sticky(cudaError_t error) {
  switch (error) {
    case cudaErrorIllegalAddress:
    case cudaErrorMisalignedAddress:
    case cudaErrorInvalidAddressSpace:
    case cudaErrorInvalidPc:
    case cudaErrorIllegalInstruction:
    case cudaErrorHardwareStackError:
    case cudaErrorAssert:
    case cudaErrorLaunchFailure:
    case cudaErrorLaunchTimeout:
      return true;
    default:
      return false;
  }
}

std::size_t pages(std::size_t bytes) {
  const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  return (bytes + page - 1) / page * page;
}

}  // namespace

namespace driver {

std::recursive_mutex& mutex() {
  static auto& one = *new std::recursive_mutex;
  return one;
}

cudaError_t enter(const char* function) {
  ++state().calls[function];
  if (state().broken != cudaSuccess) return state().broken;
  for (Injected& one : state().injected[function])
    if (--one.calls_left == 0) {
      if (is_sticky(one.error)) state().broken = one.error;
      return one.error;
    }
  return cudaSuccess;
}
cudaError_t broken() { return state().broken; }
cudaError_t misused(cudaError_t error, const std::string& what) {
  state().misuse.push_back(what);
  return error;
}

int gpu_count() { return static_cast<int>(state().used.size()); }
std::size_t total_memory() { return state().total; }
std::size_t used_memory(int gpu) { return state().used[static_cast<std::size_t>(gpu)]; }
void make_context(int gpu) { state().contexts.insert(gpu); }

// ---- memory ----

cudaError_t allocate(int gpu, std::size_t bytes, void** data) {
  State& s = state();
  *data = nullptr;
  if (bytes == 0) return cudaSuccess;
  if (const cudaError_t error = outside_of_captures(true); error != cudaSuccess) return error;
  if (bytes > s.total) return cudaErrorMemoryAllocation;
  if (gpu != kHost && bytes > s.total - used_memory(gpu)) return cudaErrorMemoryAllocation;
  const std::size_t mapped = pages(bytes);
  void* const address = mmap(nullptr, mapped, gpu == kHost ? PROT_READ | PROT_WRITE : PROT_NONE,
                             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (address == MAP_FAILED) return cudaErrorMemoryAllocation;
  auto* const own =
      gpu == kHost ? static_cast<std::byte*>(address) : static_cast<std::byte*>(std::malloc(bytes));
  std::memset(own, 0xcb, bytes);  // not zero: a program must not rely on what new memory holds
  s.memory[reinterpret_cast<std::uintptr_t>(address)] = {gpu, bytes, mapped, own};
  if (gpu != kHost) s.used[static_cast<std::size_t>(gpu)] += bytes;
  *data = address;
  return cudaSuccess;
}

cudaError_t release(void* data, bool host) {
  State& s = state();
  if (!data) return s.broken;
  if (const cudaError_t error = outside_of_captures(true); error != cudaSuccess) return error;
  const char* const call = host ? "cudaFreeHost" : "cudaFree";
  const auto found = s.memory.find(reinterpret_cast<std::uintptr_t>(data));
  if (found == s.memory.end())
    return misused(cudaErrorInvalidValue, text(call, " of an address that was not allocated"));
  Allocation& block = found->second;
  if (!block.live) return misused(cudaErrorInvalidValue, text(call, " of memory that is already free"));
  if ((block.gpu == kHost) != host)
    return misused(cudaErrorInvalidValue, text(call, " of memory of the other kind"));
  // cudaFree() and cudaFreeHost() wait for all work.
  s.each_stream([&](StreamObject& stream) { s.run_all(stream); });
  block.live = false;
  if (host) {
    mprotect(data, block.mapped, PROT_NONE);
    madvise(data, block.mapped, MADV_DONTNEED);
  } else {
    s.used[static_cast<std::size_t>(block.gpu)] -= block.bytes;
    std::free(block.data);
  }
  block.data = nullptr;
  return s.broken;
}

int owner_of(const void* address) {
  const auto* const found = state().find(address);
  return found ? found->second.gpu : kUnknown;
}

cudaError_t free_in_order(void* data, cudaStream_t stream, int current) {
  if (!state().inside(data, 0))
    return misused(cudaErrorInvalidValue, "cudaFreeAsync of memory that is not allocated");
  // The stand-in waits for all streams and releases the memory at once. CUDA would release it when the stream
  // reaches this point.
  const cudaError_t error = synchronize(stream, current);
  const cudaError_t released = release(data, false);
  return error != cudaSuccess ? error : released;
}

cudaError_t copy(void* to, std::size_t to_pitch, const void* from, std::size_t from_pitch, std::size_t width,
                 std::size_t rows, cudaMemcpyKind kind, cudaStream_t stream, int current) {
  State& s = state();
  if (width == 0 || rows == 0)
    return s.stream_of(stream, current) ? cudaSuccess : cudaErrorInvalidResourceHandle;
  if (rows > 1 && (to_pitch < width || from_pitch < width)) return cudaErrorInvalidPitchValue;
  // The bounds of host memory that CUDA did not allocate are unknown, so such memory is not checked.
  const auto resolve = [&](const void* address, std::size_t pitch, const char* side) -> std::byte* {
    if (owner_of(address) == kUnknown) return static_cast<std::byte*>(const_cast<void*>(address));
    const std::size_t bytes = (rows - 1) * pitch + width;
    std::byte* const data = s.inside(address, bytes);
    if (!data)
      misused(cudaErrorInvalidValue,
              text("a copy of ", bytes, " bytes whose ", side, " is not inside live memory"));
    return data;
  };
  std::byte* const out = to ? resolve(to, to_pitch, "target") : nullptr;
  const std::byte* const in = out && from ? resolve(from, from_pitch, "source") : nullptr;
  if (!in) return cudaErrorInvalidValue;
  const bool to_gpu = owner_of(to) >= 0, from_gpu = owner_of(from) >= 0;
  const bool fits = kind == cudaMemcpyDefault ||
                    ((kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice) == to_gpu &&
                     (kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice) == from_gpu);
  if (!fits)
    return misused(cudaErrorInvalidValue,
                   text("a copy whose direction ", int{kind}, " is not that of its addresses"));
  return enqueue(stream, current, [=] {
    // Both addresses are looked up again when the copy runs, because a wrong program may have released the
    // memory before.
    if ((owner_of(to) != kUnknown && !state().inside(to, 1)) ||
        (owner_of(from) != kUnknown && !state().inside(from, 1))) {
      misused(cudaErrorIllegalAddress, "memory was released while a copy in a stream still needed it");
      state().broken = cudaErrorIllegalAddress;
      return;
    }
    for (std::size_t r = 0; r < rows; ++r) std::memmove(out + r * to_pitch, in + r * from_pitch, width);
  });
}

cudaError_t fill(void* to, int value, std::size_t bytes, cudaStream_t stream, int current) {
  if (bytes == 0) return cudaSuccess;
  std::byte* const out = state().inside(to, bytes);
  if (!out) return misused(cudaErrorInvalidValue, "cudaMemset of memory that is not allocated");
  return enqueue(stream, current, [=] { std::memset(out, value, bytes); });
}

cudaError_t allow_access(int gpu, int other) {
  if (gpu == other || other < 0 || other >= gpu_count())
    return misused(cudaErrorInvalidDevice, "peer access to a GPU that does not exist, or to itself");
  return state().peers.emplace(gpu, other).second ? cudaSuccess : cudaErrorPeerAccessAlreadyEnabled;
}

// ---- streams ----

cudaError_t create_stream(int gpu, unsigned flags, int priority, cudaStream_t* stream) {
  if (!stream || (flags != cudaStreamDefault && flags != cudaStreamNonBlocking)) return cudaErrorInvalidValue;
  auto made = std::make_unique<StreamObject>(StreamObject{gpu, flags, priority});
  *stream = reinterpret_cast<cudaStream_t>(made.get());
  state().streams_made.push_back(made.get());
  state().streams[made.get()] = std::move(made);
  return cudaSuccess;
}
// Destroys a stream. As in CUDA, the work that was enqueued before still runs.
cudaError_t destroy_stream(cudaStream_t stream) {
  StreamObject* const object = stream ? state().stream_of(stream, 0) : nullptr;
  if (!object)
    return misused(cudaErrorInvalidResourceHandle, "cudaStreamDestroy of a stream that does not exist");
  object->live = false;
  return state().broken;
}
int gpu_of(cudaStream_t stream, int current) {
  const StreamObject* const object = state().stream_of(stream, current);
  return object ? object->gpu : -1;
}
int priority_of(cudaStream_t stream) { return state().stream_of(stream, 0)->priority; }
unsigned flags_of(cudaStream_t stream) { return state().stream_of(stream, 0)->flags; }

namespace {
cudaError_t no_stream() { return misused(cudaErrorInvalidResourceHandle, "a stream that does not exist"); }
cudaError_t no_event() { return misused(cudaErrorInvalidResourceHandle, "an event that does not exist"); }
}  // namespace

cudaError_t enqueue(cudaStream_t stream, int current, Work work) {
  StreamObject* const object = state().stream_of(stream, current);
  if (!object) return no_stream();
  if (CaptureObject* const capture = state().capture.get()) {
    if (capture->stream == object) {
      capture->nodes.push_back(std::move(work));
      return cudaSuccess;
    }
    // The legacy stream would have to wait for a stream that is captured.
    if (!stream && !(capture->stream->flags & cudaStreamNonBlocking)) {
      capture->valid = false;
      return cudaErrorStreamCaptureImplicit;
    }
  }
  state().order_with_null(*object);
  object->work.push_back(std::move(work));
  return cudaSuccess;
}

// ---- captures ----

namespace {
thread_local cudaStreamCaptureMode thread_mode = cudaStreamCaptureModeThreadLocal;
}  // namespace

cudaError_t outside_of_captures(bool relaxed) {
  CaptureObject* const capture = state().capture.get();
  if (!capture ||
      (capture->mode == cudaStreamCaptureModeThreadLocal && capture->thread != std::this_thread::get_id()))
    return cudaSuccess;
  if (relaxed &&
      (thread_mode == cudaStreamCaptureModeRelaxed || capture->mode == cudaStreamCaptureModeRelaxed))
    return cudaSuccess;
  capture->valid = false;
  return cudaErrorStreamCaptureUnsupported;
}
cudaError_t begin_capture(cudaStream_t stream, cudaStreamCaptureMode mode, int current) {
  StreamObject* const object = state().stream_of(stream, current);
  if (!object) return no_stream();
  if (!stream || state().capture) return cudaErrorStreamCaptureUnsupported;
  state().capture = std::make_unique<CaptureObject>(CaptureObject{object, mode, std::this_thread::get_id()});
  return cudaSuccess;
}
cudaError_t end_capture(cudaStream_t stream, cudaGraph_t* graph, int current) {
  StreamObject* const object = state().stream_of(stream, current);
  *graph = nullptr;
  if (!object || !state().capture || state().capture->stream != object)
    return misused(cudaErrorIllegalState, "cudaStreamEndCapture of a stream that is not captured");
  const auto ended = std::move(state().capture);
  if (ended->mode == cudaStreamCaptureModeThreadLocal && ended->thread != std::this_thread::get_id())
    return cudaErrorStreamCaptureWrongThread;
  if (!ended->valid) return cudaErrorStreamCaptureInvalidated;
  auto made = std::make_unique<GraphObject>(GraphObject{std::move(ended->nodes), false});
  *graph = reinterpret_cast<cudaGraph_t>(made.get());
  state().graphs[made.get()] = std::move(made);
  return cudaSuccess;
}
cudaError_t exchange_mode(cudaStreamCaptureMode* mode) {
  std::swap(*mode, thread_mode);
  return cudaSuccess;
}
cudaError_t count_nodes(cudaGraph_t graph, std::size_t* count) {
  const GraphObject* const object = state().graph_of(graph, false);
  if (!object) return misused(cudaErrorInvalidValue, "a graph that does not exist");
  *count = object->nodes.size();
  return cudaSuccess;
}
cudaError_t instantiate(cudaGraphExec_t* ready, cudaGraph_t graph) {
  const GraphObject* const object = state().graph_of(graph, false);
  if (!object) return misused(cudaErrorInvalidValue, "cudaGraphInstantiate of a graph that does not exist");
  auto made = std::make_unique<GraphObject>(GraphObject{object->nodes, true});
  *ready = reinterpret_cast<cudaGraphExec_t>(made.get());
  state().graphs[made.get()] = std::move(made);
  return cudaSuccess;
}
cudaError_t launch(cudaGraphExec_t graph, cudaStream_t stream, int current) {
  const GraphObject* const object = state().graph_of(graph, true);
  if (!object) return misused(cudaErrorInvalidValue, "cudaGraphLaunch of a graph that does not exist");
  for (const Work& node : object->nodes)
    if (const cudaError_t error = enqueue(stream, current, node); error != cudaSuccess) return error;
  return cudaSuccess;
}
cudaError_t destroy_graph(const void* graph, bool executable) {
  GraphObject* const object = state().graph_of(graph, executable);
  if (!object) return misused(cudaErrorInvalidValue, "a graph destroyed that does not exist");
  object->live = false;
  return cudaSuccess;
}

cudaError_t query(cudaStream_t stream, int current) {
  StreamObject* const object = state().stream_of(stream, current);
  if (!object) return no_stream();
  if (const cudaError_t error = outside_of_captures(false); error != cudaSuccess) return error;
  const bool done = object->work.empty();
  if (!done) state().step();
  return state().broken != cudaSuccess ? state().broken : done ? cudaSuccess : cudaErrorNotReady;
}
cudaError_t synchronize(cudaStream_t stream, int current) {
  StreamObject* const object = state().stream_of(stream, current);
  if (!object) return no_stream();
  if (const cudaError_t error = outside_of_captures(false); error != cudaSuccess) return error;
  state().order_with_null(*object);
  state().run_all(*object);
  return state().broken;
}
cudaError_t synchronize_gpu(int gpu) {
  if (const cudaError_t error = outside_of_captures(false); error != cudaSuccess) return error;
  state().each_stream([&](StreamObject& stream) {
    if (stream.gpu == gpu) state().run_all(stream);
  });
  return state().broken;
}

// ---- events ----

cudaError_t create_event(int gpu, unsigned flags, cudaEvent_t* event) {
  if (!event || (flags & ~(cudaEventBlockingSync | cudaEventDisableTiming | cudaEventInterprocess)))
    return cudaErrorInvalidValue;
  auto made = std::make_unique<EventObject>(EventObject{gpu, flags});
  *event = reinterpret_cast<cudaEvent_t>(made.get());
  state().events[made.get()] = std::move(made);
  return cudaSuccess;
}
cudaError_t destroy_event(cudaEvent_t event) {
  EventObject* const object = state().event_of(event);
  if (!object) return no_event();
  object->live = false;
  return state().broken;
}
cudaError_t record(cudaEvent_t event, cudaStream_t stream, int current) {
  EventObject* const object = state().event_of(event);
  StreamObject* const on = state().stream_of(stream, current);
  if (!object) return no_event();
  if (!on) return no_stream();
  if (object->gpu != on->gpu)
    return misused(cudaErrorInvalidResourceHandle,
                   text("an event of GPU ", object->gpu, " recorded in a stream of GPU ", on->gpu));
  state().order_with_null(*on);
  object->last = state().signal_in(*on);
  return cudaSuccess;
}
cudaError_t wait(cudaStream_t stream, int current, cudaEvent_t event) {
  EventObject* const object = state().event_of(event);
  StreamObject* const waiting = state().stream_of(stream, current);
  if (!object) return no_event();
  if (!waiting) return no_stream();
  if (object->last) state().make_wait(*waiting, object->last);
  return cudaSuccess;
}
cudaError_t query(cudaEvent_t event) {
  EventObject* const object = state().event_of(event);
  if (!object) return no_event();
  if (const cudaError_t error = outside_of_captures(false); error != cudaSuccess) return error;
  const bool done = !object->last || object->last->reached;
  if (!done) state().step();
  return state().broken != cudaSuccess ? state().broken : done ? cudaSuccess : cudaErrorNotReady;
}
cudaError_t synchronize(cudaEvent_t event) {
  EventObject* const object = state().event_of(event);
  if (!object) return no_event();
  if (const cudaError_t error = outside_of_captures(false); error != cudaSuccess) return error;
  if (object->last) state().run_until(*object->last);
  return state().broken;
}
cudaError_t elapsed(float* ms, cudaEvent_t begin, cudaEvent_t end) {
  EventObject *const from = state().event_of(begin), *const to = state().event_of(end);
  if (!from || !to) return no_event();
  if (((from->flags | to->flags) & cudaEventDisableTiming) || !from->last || !to->last)
    return misused(cudaErrorInvalidResourceHandle, "time between events that were not recorded with timing");
  if (!from->last->reached || !to->last->reached) return cudaErrorNotReady;
  *ms = static_cast<float>(to->last->time - from->last->time);
  return cudaSuccess;
}

// ---- kernels ----

int add_kernel(Kernel kernel) {
  registry().kernels[registry().next] = std::move(kernel);
  return registry().next++;
}
void remove_kernel(int number) { registry().kernels.erase(number); }

cudaError_t launch(const Kernel& kernel, dim3 grid, dim3 block, std::size_t shared_bytes,
                   std::size_t shared_limit, cudaStream_t stream, int current, void** arguments) {
  State& s = state();
  const int gpu = gpu_of(stream, current);
  if (gpu < 0) return no_stream();
  if (gpu != current)
    return misused(cudaErrorInvalidResourceHandle, text(kernel.symbol, " launched in a stream of GPU ", gpu,
                                                        " while the current device is ", current));
  const std::uint64_t threads = std::uint64_t{block.x} * block.y * block.z;
  if (grid.x == 0 || grid.y == 0 || grid.z == 0 || grid.x > 0x7fffffff || grid.y > 65535 || grid.z > 65535 ||
      threads == 0 || threads > 1024 || block.x > 1024 || block.y > 1024 || block.z > 64)
    return cudaErrorInvalidConfiguration;
  if (kernel.max_threads > 0 && threads > kernel.max_threads) return cudaErrorLaunchOutOfResources;
  if (shared_bytes > shared_limit) return cudaErrorInvalidValue;
  Launch made{kernel, {grid.x, grid.y, grid.z}, {block.x, block.y, block.z}, shared_bytes, gpu, stream, {}};
  if (kernel.parameters) {
    for (std::size_t i = 0; i < kernel.parameters->size(); ++i) {
      const Parameter& p = (*kernel.parameters)[i];
      if (!arguments || !arguments[i])
        return misused(cudaErrorInvalidValue, text(kernel.symbol, " launched without its argument ", i));
      made.arguments.resize(p.offset + p.bytes);
      std::memcpy(made.arguments.data() + p.offset, arguments[i], p.bytes);
    }
  }
  s.launches.push_back(made);
  return enqueue(stream, current, [made = std::move(made)] {
    State& now = state();
    if (now.next_kernel != cudaSuccess) {
      now.broken = std::exchange(now.next_kernel, cudaSuccess);
      return;
    }
    if (!now.executor) return;
    try {
      now.executor(made);
    } catch (const std::exception& e) {
      misused(cudaErrorLaunchFailure, text(made.kernel.symbol, ": ", e.what()));
      now.broken = cudaErrorLaunchFailure;
    }
  });
}

}  // namespace driver
}  // namespace stand_in
