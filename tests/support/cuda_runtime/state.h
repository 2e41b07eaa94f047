#pragma once
// The state of the stand-in driver: GPUs, their memory, streams and events, and what tests inject and read.
// Only driver.cpp and control.cpp use it, and only while they hold driver::mutex().
#include <sys/mman.h>

#include <cstdlib>
#include <deque>
#include <memory>
#include <set>
#include <sstream>
#include <thread>
#include <utility>

#include "tests/support/cuda_runtime/driver.h"

namespace stand_in {

using driver::Work;

constexpr int kHost = -1, kUnknown = -2;

struct Allocation {
  int gpu;
  std::size_t bytes, mapped;
  std::byte*
      data;  // where the stand-in reads and writes; for page-locked memory, the address that the program got
  bool live = true;
};

struct StreamObject {
  int gpu;
  unsigned flags = 0;
  int priority = 0;
  bool live = true;
  std::deque<Work> work = {};
};

// One cudaEventRecord() of an event. A later one replaces it.
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

// A capture in progress: the work of `stream` becomes nodes.
struct CaptureObject {
  StreamObject* stream;
  cudaStreamCaptureMode mode;
  std::thread::id thread;
  std::vector<Work> nodes = {};
  bool valid = true;
};
struct GraphObject {
  std::vector<Work> nodes;
  bool executable;
  bool live = true;
};

// An error that a test has injected. Each call decrements `calls_left`, and the call that sets it to 0
// returns the error.
struct Injected {
  int calls_left;
  cudaError_t error;
};

template <class... Args>
std::string text(const Args&... args) {
  std::ostringstream out;
  (out << ... << args);
  return out.str();
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
  std::deque<StreamObject> null_streams;  // one per GPU
  // All allocations, also released ones. Their addresses are never reused, so that an access to released
  // memory is detected.
  std::map<std::uintptr_t, Allocation> memory;
  std::map<const void*, std::unique_ptr<StreamObject>> streams;
  std::vector<StreamObject*> streams_made;  // in the order of their creation
  std::map<const void*, std::unique_ptr<EventObject>> events;
  std::unique_ptr<CaptureObject> capture;
  std::map<const void*, std::unique_ptr<GraphObject>> graphs;
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
  // Returns the memory that backs [address, address + bytes), or null if the range is not inside one live
  // allocation.
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
  // Called when the host polls. Runs the next item of every stream, so that a polling program makes progress.
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
  // Implements the implicit synchronization of the legacy null stream. It waits for the other blocking
  // streams of its GPU, and each of them waits for it.
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

  GraphObject* graph_of(const void* graph, bool executable) {
    const auto found = graphs.find(graph);
    const bool fits = found != graphs.end() && found->second->live && found->second->executable == executable;
    return fits ? found->second.get() : nullptr;
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

struct Registry {
  int next = 0;
  std::map<int, Kernel> kernels;
};

/// The state of all GPUs since the last reset().
State& state();
/// The kernels that all modules have registered. reset() keeps them.
Registry& registry();

}  // namespace stand_in
