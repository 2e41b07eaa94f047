#pragma once
// The state of the driver: GPUs, their memory, streams and events, and what tests inject and read. Only the
// files of the driver use it, and only while they hold driver::mutex().
#include <deque>
#include <memory>
#include <set>
#include <sstream>
#include <thread>
#include <utility>

#include "tapestry/tools/ptx/runtime/driver.h"
#include "tapestry/tools/ptx/runtime/execution.h"
#include "tapestry/tools/ptx/runtime/graph.h"

namespace stand_in {

using driver::Operation;

constexpr int kHost = -1, kUnknown = -2;

/// What kind of memory an allocation is, which decides how it is released.
enum class MemoryKind : std::uint8_t { kDevice, kPool, kPinned, kRegistered, kManaged, kVariable };

struct Block {
  MemoryKind kind;
  int gpu;                    // kHost for pinned and registered memory
  std::size_t bytes, mapped;  // what was asked for; what the addresses span, with a gap behind it
  std::byte* data;            // where the host can read and write the bytes
  unsigned flags = 0;
  bool live = true;
  // cudaFreeAsync was called; the stream has not reached it yet.
  bool freeing = false;
  Callers called_from = {};  // of the allocation
};

struct CaptureObject;

using StreamOrder = tapestry::ptx::StreamOrder;
using OrderPoint = StreamOrder::Point;

struct StreamObject {
  int gpu;
  unsigned flags = 0;
  int priority = 0;
  bool live = true;
  std::deque<Operation> work = {};
  // A thread is inside the first operation's host function, without the lock.
  bool busy = false;
  std::uint64_t id = 0;
  std::uint32_t order = 0;              // its number in State::order
  CaptureObject* capture = nullptr;     // the capture that this stream takes part in
  std::vector<NodeObject*> tails = {};  // while it is captured: the nodes that its next operation follows
};

// One cudaEventRecord() of an event. A later one replaces it.
struct Signal {
  StreamObject* stream;
  OrderPoint point = {};
  bool reached = false;
  double time = 0;
};

struct EventObject {
  int gpu;
  unsigned flags;
  bool live = true;
  std::shared_ptr<Signal> last = nullptr;
  // If it was recorded last in a captured stream:
  CaptureObject* capture = nullptr;
  std::vector<NodeObject*> tails = {};
};

// A capture in progress. The operations of its streams become nodes of its graph.
struct CaptureObject {
  StreamObject* origin;
  cudaStreamCaptureMode mode;
  std::thread::id thread;
  GraphObject* graph;
  bool owns_graph = true;  // false if cudaStreamBeginCaptureToGraph gave it
  bool valid = true;
  std::uint64_t id = 0;
  std::vector<StreamObject*> streams = {};
};

struct PoolObject {
  int gpu;
  bool live = true;
  std::size_t used = 0, used_high = 0;
  std::map<int, std::uint64_t> attributes = {};
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
  /// Without `executes`, kernels do nothing.
  State(int gpus, std::size_t memory_each, const Settings* executes);
  /// From now on, the machine runs kernels.
  void execute(const Settings& how);
  State(const State&) = delete;
  State& operator=(const State&) = delete;
  ~State();

  const std::size_t total;
  std::vector<std::size_t> used;
  std::deque<StreamObject> null_streams;  // one per GPU
  // All allocations, also released ones. Their addresses are never reused, so that an access to released
  // memory is detected.
  std::map<std::uintptr_t, Block> memory;
  std::map<const void*, std::unique_ptr<StreamObject>> streams;
  std::map<std::pair<std::thread::id, int>, StreamObject*> thread_streams;  // cudaStreamPerThread
  std::vector<StreamObject*> streams_made;                                  // in the order of their creation
  std::map<const void*, std::unique_ptr<EventObject>> events;
  std::vector<std::unique_ptr<CaptureObject>> captures;
  Graphs graphs;
  std::map<const void*, std::unique_ptr<PoolObject>> pools;
  std::vector<PoolObject*> default_pools, current_pools;  // by GPU
  std::set<int> contexts;
  std::set<std::pair<int, int>> peers;
  std::map<std::string, int> calls;
  std::map<std::string, std::vector<Injected>> injected;
  cudaError_t broken = cudaSuccess, next_kernel = cudaSuccess;
  std::vector<Launch> launches;
  std::vector<std::string> misuse;
  Executor executor;
  std::unique_ptr<Execution> execution;  // null if kernels do nothing, or if `executor` runs them
  // Which work is ordered with which; null if it is not checked.
  std::unique_ptr<StreamOrder> order;
  StreamOrder::Work running = StreamOrder::kNone;  // the operation that runs now
  double time = 0;
  std::uint64_t next_id = 1;

  // ---- memory ----

  std::pair<const std::uintptr_t, Block>* find(const void* address);
  /// Returns the memory that backs [address, address + bytes), or null if the range is not inside one live
  /// allocation.
  std::byte* inside(const void* address, std::size_t bytes);

  // ---- the order of work; all do nothing if it is not checked ----

  /// The operation enters the stream.
  void enter_order(StreamObject& stream, Operation& operation);
  OrderPoint point_of(StreamObject& stream);
  /// Everything that enters the stream later, or that the host does later, comes after the point.
  void order_after(StreamObject& stream, const OrderPoint& point);
  void host_after(const OrderPoint& point);
  /// The host has waited for all that is in the stream.
  void host_after(StreamObject& stream) { host_after(point_of(stream)); }
  /// Calls f(order), and reports the error that it throws.
  template <class F>
  void check_order(F f) {
    if (!order) return;
    try {
      f(*order);
    } catch (const tapestry::ptx::OrderError& e) {
      driver::misused(cudaErrorUnknown, e.what());
    }
  }

  // ---- work ----

  template <class F>
  void each_stream(F f) {
    for (StreamObject& stream : null_streams) f(stream);
    for (StreamObject* stream : streams_made) f(*stream);
  }
  /// Runs the first operation of the stream, or, if that one waits for another stream, one of the other
  /// stream. False if nothing could run.
  bool advance(StreamObject& stream);
  /// Runs operations of the stream until done() is true or the stream is empty.
  template <class F>
  void run_until(StreamObject& stream, F done) {
    while (!done() && !stream.work.empty())
      if (!advance(stream)) wait_for_others(stream);
  }
  void run_all(StreamObject& stream) {
    run_until(stream, [] { return false; });
  }
  void run_until(const Signal& signal) {
    run_until(*signal.stream, [&] { return signal.reached; });
  }
  /// Called when the host polls. Runs the next operation of every stream, so that a polling program makes
  /// progress. False if nothing could run.
  bool step() {
    bool ran = false;
    each_stream([&](StreamObject& stream) { ran = advance(stream) || ran; });
    return ran;
  }
  std::shared_ptr<Signal> signal_in(StreamObject& stream);
  void make_wait(StreamObject& stream, const std::shared_ptr<Signal>& signal);
  /// Implements the implicit synchronization of the legacy null stream. It waits for the other blocking
  /// streams of its GPU, and each of them waits for it.
  void order_with_null(StreamObject& stream);

  StreamObject* stream_of(cudaStream_t stream, int current);
  EventObject* event_of(cudaEvent_t event) {
    const auto found = events.find(event);
    return found == events.end() || !found->second->live ? nullptr : found->second.get();
  }

 private:
  void wait_for_others(StreamObject& stream);
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
