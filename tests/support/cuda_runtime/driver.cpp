#include "tests/support/cuda_runtime/driver.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <memory>
#include <set>
#include <sstream>
#include <string_view>
#include <utility>

#include "tests/support/cuda_runtime/ptx.h"

namespace stand_in {
namespace {

using driver::Work;

constexpr int kHost = -1, kUnknown = -2;

struct Allocation {
  int gpu;
  std::size_t bytes, mapped;
  std::byte* data;  // where the stand-in itself reads and writes; the address of page-locked memory
  bool live = true;
};

struct StreamObject {
  int gpu;
  unsigned flags = 0;
  int priority = 0;
  bool live = true;
  std::deque<Work> work = {};
};

// One recording of an event.
struct Signal {
  StreamObject* stream;
  bool reached = false;
  double time = 0;
};

struct EventObject {
  int gpu;
  unsigned flags;
  bool live = true;
  std::shared_ptr<Signal> last = nullptr;
};

// A call that shall fail.
struct Injected {
  int calls_left;
  cudaError_t error;
};

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

template <class... Args>
std::string text(const Args&... args) {
  std::ostringstream out;
  (out << ... << args);
  return out.str();
}

std::size_t pages(std::size_t bytes) {
  const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  return (bytes + page - 1) / page * page;
}

struct State {
  State(int gpus, std::size_t memory_each)
      : total(memory_each),
        used(static_cast<std::size_t>(gpus)),
        null_streams(static_cast<std::size_t>(gpus)) {
    for (int i = 0; i < gpus; ++i) null_streams[static_cast<std::size_t>(i)].gpu = i;
  }
  State(const State&) = delete;
  State& operator=(const State&) = delete;
  ~State() {
    for (auto& [address, block] : memory) {
      munmap(reinterpret_cast<void*>(address), block.mapped);
      if (block.gpu != kHost && block.live) std::free(block.data);
    }
  }

  const std::size_t total;
  std::vector<std::size_t> used;
  std::deque<StreamObject> null_streams;  // by GPU
  // Addresses are never reused, so that a stale address is recognised.
  std::map<std::uintptr_t, Allocation> memory;
  std::map<const void*, std::unique_ptr<StreamObject>> streams;
  std::vector<StreamObject*> streams_made;  // in the order of their creation
  std::map<const void*, std::unique_ptr<EventObject>> events;
  std::set<int> contexts;
  std::set<std::pair<int, int>> peers;
  std::map<std::string, int> calls;
  std::map<std::string, std::vector<Injected>> injected;
  cudaError_t broken = cudaSuccess, next_kernel = cudaSuccess;
  std::vector<Launch> launches;
  std::vector<std::string> misuse;
  Executor executor;
  double time = 0;

  // ---- memory ----

  std::pair<const std::uintptr_t, Allocation>* find(const void* address) {
    const auto at = reinterpret_cast<std::uintptr_t>(address);
    auto after = memory.upper_bound(at);
    if (after == memory.begin()) return nullptr;
    auto& found = *std::prev(after);
    return at < found.first + found.second.mapped ? &found : nullptr;
  }
  // Where the stand-in accesses [address, address + bytes); null if that is not inside a live allocation.
  std::byte* inside(const void* address, std::size_t bytes) {
    const auto* const found = find(address);
    if (!found || !found->second.live) return nullptr;
    const std::size_t offset = reinterpret_cast<std::uintptr_t>(address) - found->first;
    if (bytes > found->second.bytes || offset > found->second.bytes - bytes) return nullptr;
    return found->second.data + offset;
  }

  // ---- work ----

  void run_one(StreamObject& stream) {
    const Work work = std::move(stream.work.front());
    stream.work.pop_front();
    time += 1;
    if (broken == cudaSuccess) work();
  }
  void run_all(StreamObject& stream) {
    while (!stream.work.empty()) run_one(stream);
  }
  void run_until(const Signal& signal) {
    while (!signal.reached && !signal.stream->work.empty()) run_one(*signal.stream);
  }
  template <class F>
  void each_stream(F f) {
    for (StreamObject& stream : null_streams) f(stream);
    for (StreamObject* stream : streams_made) f(*stream);
  }
  // Polling makes progress: each poll runs one item of every stream.
  void step() {
    each_stream([&](StreamObject& stream) {
      if (!stream.work.empty()) run_one(stream);
    });
  }
  std::shared_ptr<Signal> signal_in(StreamObject& stream) {
    auto signal = std::make_shared<Signal>(Signal{&stream});
    stream.work.emplace_back([this, signal] {
      signal->reached = true;
      signal->time = time;
    });
    return signal;
  }
  void make_wait(StreamObject& stream, const std::shared_ptr<Signal>& signal) {
    stream.work.emplace_back([this, signal] { run_until(*signal); });
  }
  // The null stream waits for blocking streams, and they for it.
  void order_with_null(StreamObject& stream) {
    StreamObject& null_stream = null_streams[static_cast<std::size_t>(stream.gpu)];
    if (&stream != &null_stream) {
      if (!(stream.flags & cudaStreamNonBlocking) && !null_stream.work.empty())
        make_wait(stream, signal_in(null_stream));
      return;
    }
    for (StreamObject* other : streams_made)
      if (other->gpu == stream.gpu && !(other->flags & cudaStreamNonBlocking) && !other->work.empty())
        make_wait(stream, signal_in(*other));
  }

  StreamObject* stream_of(cudaStream_t stream, int current) {
    if (!stream || stream == cudaStreamLegacy) return &null_streams[static_cast<std::size_t>(current)];
    const auto found = streams.find(stream);
    return found == streams.end() || !found->second->live ? nullptr : found->second.get();
  }
  EventObject* event_of(cudaEvent_t event) {
    const auto found = events.find(event);
    return found == events.end() || !found->second->live ? nullptr : found->second.get();
  }
};

int gpus_wanted() {
  const char* const text = std::getenv("TAPESTRY_STAND_IN_GPUS");
  return text ? std::atoi(text) : 2;
}

std::unique_ptr<State>& holder() {
  static auto& state =
      *new std::unique_ptr<State>(std::make_unique<State>(gpus_wanted(), std::size_t{1} << 30));
  return state;
}
State& state() { return *holder(); }

std::atomic<int> resets{0};

struct Registry {
  int next = 0;
  std::map<int, Kernel> kernels;
};
Registry& registry() {
  static auto& all = *new Registry;
  return all;
}

using Lock = std::lock_guard<std::recursive_mutex>;

// Runs after the destructors of the libraries that use this one.
__attribute__((destructor)) void check_at_exit() {
  const char* const mode = std::getenv("TAPESTRY_STAND_IN_EXIT");
  if (mode && std::string_view(mode) == "ignore") return;
  const auto leaked = leaks(), misused = misuse();
  for (const auto& line : leaked) std::fprintf(stderr, "[stand-in CUDA] leaked: %s\n", line.c_str());
  for (const auto& line : misused) std::fprintf(stderr, "[stand-in CUDA] misuse: %s\n", line.c_str());
  if (!leaked.empty() || !misused.empty()) _exit(70);
}

}  // namespace

// ---- control.h ----

void reset(int gpus, std::size_t memory) {
  const Lock lock(driver::mutex());
  holder() = std::make_unique<State>(gpus, memory);
  ++resets;
}
void fail(const std::string& function, int nth, int error) {
  const Lock lock(driver::mutex());
  state().injected[function].push_back({nth, static_cast<cudaError_t>(error)});
}
void fail_next_kernel(int error) {
  const Lock lock(driver::mutex());
  state().next_kernel = static_cast<cudaError_t>(error);
}
std::map<std::string, int> calls() {
  const Lock lock(driver::mutex());
  return state().calls;
}
std::vector<Launch> launches() {
  const Lock lock(driver::mutex());
  return state().launches;
}
std::vector<Kernel> kernels() {
  const Lock lock(driver::mutex());
  std::vector<Kernel> all;
  for (const auto& [number, kernel] : registry().kernels) read_entry(all.emplace_back(kernel));
  return all;
}
std::vector<int> contexts() {
  const Lock lock(driver::mutex());
  return {state().contexts.begin(), state().contexts.end()};
}
std::vector<std::string> misuse() {
  const Lock lock(driver::mutex());
  return state().misuse;
}
std::vector<std::string> leaks() {
  const Lock lock(driver::mutex());
  std::vector<std::string> lines;
  for (const auto& [address, block] : state().memory)
    if (block.live)
      lines.push_back(
          text(block.bytes, " bytes ",
               block.gpu == kHost ? "of page-locked memory" : text("of memory on GPU ", block.gpu)));
  for (const auto& [handle, stream] : state().streams)
    if (stream->live) lines.push_back(text("a stream of GPU ", stream->gpu));
  for (const auto& [handle, event] : state().events)
    if (event->live) lines.push_back(text("an event of GPU ", event->gpu));
  return lines;
}
void set_executor(Executor executor) {
  const Lock lock(driver::mutex());
  state().executor = std::move(executor);
}
std::byte* memory_at(const void* address, std::size_t bytes) {
  const Lock lock(driver::mutex());
  return state().inside(address, bytes);
}

namespace driver {

std::recursive_mutex& mutex() {
  static auto& one = *new std::recursive_mutex;
  return one;
}

int epoch() { return resets; }

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
  const char* const call = host ? "cudaFreeHost" : "cudaFree";
  const auto found = s.memory.find(reinterpret_cast<std::uintptr_t>(data));
  if (found == s.memory.end())
    return misused(cudaErrorInvalidValue, text(call, " of an address that was not allocated"));
  Allocation& block = found->second;
  if (!block.live) return misused(cudaErrorInvalidValue, text(call, " of memory that is already free"));
  if ((block.gpu == kHost) != host)
    return misused(cudaErrorInvalidValue, text(call, " of memory of the other kind"));
  s.each_stream([&](StreamObject& stream) { s.run_all(stream); });  // both calls wait for the GPU
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
  // The memory must not be used after this point of the stream; releasing it here waits for all streams.
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
  // Host memory that CUDA did not allocate has no known bounds: it is accessed as it is.
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
    // Looked up again: memory that was released before the copy ran was released too early.
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
// Its work still runs.
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
  state().order_with_null(*object);
  object->work.push_back(std::move(work));
  return cudaSuccess;
}
cudaError_t query(cudaStream_t stream, int current) {
  StreamObject* const object = state().stream_of(stream, current);
  if (!object) return no_stream();
  const bool done = object->work.empty();
  if (!done) state().step();
  return state().broken != cudaSuccess ? state().broken : done ? cudaSuccess : cudaErrorNotReady;
}
cudaError_t synchronize(cudaStream_t stream, int current) {
  StreamObject* const object = state().stream_of(stream, current);
  if (!object) return no_stream();
  state().order_with_null(*object);
  state().run_all(*object);
  return state().broken;
}
cudaError_t synchronize_gpu(int gpu) {
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
  const bool done = !object->last || object->last->reached;
  if (!done) state().step();
  return state().broken != cudaSuccess ? state().broken : done ? cudaSuccess : cudaErrorNotReady;
}
cudaError_t synchronize(cudaEvent_t event) {
  EventObject* const object = state().event_of(event);
  if (!object) return no_event();
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
