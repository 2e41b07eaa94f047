#include "tests/support/fake_gpu.h"

#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <deque>
#include <exception>
#include <map>
#include <mutex>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "tapestry/core/error.h"

namespace tapestry::testing {
namespace {

using Work = std::function<bool()>;  // returns false if the work is not finished and must be called again

struct Queue {
  int gpu;
  std::deque<Work> work;
  bool busy = false;  // its first work item is running now
};

// One cudaEventRecord() of an event. A later one replaces it.
struct Signal {
  Queue* on;
  bool happened = false;
  double at = 0;
};

struct FakeEvent {
  std::shared_ptr<Signal> last;
  bool captured = false;  // recorded in a capture, so it stands for a place in a graph
};

// The work that a stream was given between begin_capture() and end_capture().
struct FakeGraph {
  std::vector<Work> nodes;
};
struct FakeCapture {
  Queue* on;
  std::thread::id thread;
  FakeGraph graph = {};
  std::string invalid = {};  // the first call that was refused
};

thread_local int chosen = -1;  // the thread's current device; -1 if it has chosen none

// A host wait fails after this time. Otherwise it could last forever: the work may itself wait for another
// stream.
constexpr std::chrono::seconds kLongestWait{60};

constexpr std::size_t kPage = 4096;
std::size_t pages(std::size_t bytes) { return (bytes + kPage - 1) / kPage * kPage; }

}  // namespace

struct FakeGpuState final : cuda::Runtime {
  FakeGpuState(int gpus, std::size_t memory) : total(memory), used(static_cast<std::size_t>(gpus) + 1) {}
  ~FakeGpuState() override {
    for (const auto& [data, block] : blocks) munmap(data, pages(block.bytes));
  }

  struct Block {
    int gpu;
    std::size_t bytes;
  };

  mutable std::recursive_mutex mutex;
  const std::size_t total;
  std::vector<std::size_t> used;  // by GPU; the last entry is page-locked memory
  std::map<void*, Block> blocks;
  std::vector<std::unique_ptr<Queue>> queues;
  std::vector<std::unique_ptr<FakeEvent>> events;
  int peer_copies = 0;
  double time = 0;
  std::int64_t host_waits = 0;
  std::set<std::pair<int, int>> apart;  // GPUs that cannot access the other's memory
  std::set<int> in_use;        // the GPUs on which CUDA would have created a context
  std::exception_ptr failure;  // thrown by work; the next wait rethrows it
  bool frozen = false, broken = false, open = false;
  std::unique_ptr<FakeCapture> capture;
  std::vector<std::unique_ptr<FakeGraph>> graphs;

  // Enqueues work, or adds it to the graph that is captured.
  void put(void* stream, Work work) {
    auto* const queue = static_cast<Queue*>(stream);
    if (capture && capture->on == queue) capture->graph.nodes.push_back(std::move(work));
    else queue->work.push_back(std::move(work));
  }
  [[noreturn]] void refuse(const char* call, const char* error) {
    if (capture->invalid.empty()) capture->invalid = call;
    throw CudaError(concat({"[cuda] ", call, " in a capture: ", error}));
  }
  // What CUDA permits only outside of captures: it refuses the call and invalidates the capture.
  void outside_of_captures(const char* call) {
    if (capture && capture->thread == std::this_thread::get_id())
      refuse(call, "cudaErrorStreamCaptureUnsupported");
  }

  std::size_t& used_by(int gpu) { return gpu < 0 ? used.back() : used[static_cast<std::size_t>(gpu)]; }
  int gpus() const { return static_cast<int>(used.size()) - 1; }

  void may_break(const char* call) {
    if (std::exchange(broken, false)) throw CudaError(concat({"[cuda] ", call, " failed as asked"}));
  }

  // about() records a call for a given GPU, which becomes the thread's current device. about_any() records a
  // call that works on any GPU: it uses the current device if there is one (see runtime.h).
  void about(int gpu) { in_use.insert(chosen = gpu); }
  void about_any(int gpu) { about(chosen < 0 ? gpu : chosen); }

  // ---- work ----

  void protect(bool on) {
    for (const auto& [data, block] : blocks)
      if (block.gpu >= 0) mprotect(data, pages(block.bytes), on ? PROT_NONE : PROT_READ | PROT_WRITE);
  }
  // While this object exists, device memory is accessible to this process. Objects may be nested.
  class Opened {
   public:
    explicit Opened(FakeGpuState& state) : state_(state), outermost_(!std::exchange(state.open, true)) {
      if (outermost_) state_.protect(false);
    }
    ~Opened() {
      if (!outermost_) return;
      state_.protect(true);
      state_.open = false;
    }
    Opened(const Opened&) = delete;
    Opened& operator=(const Opened&) = delete;

   private:
    FakeGpuState& state_;
    const bool outermost_;
  };
  // Runs the next work item of the stream. Returns false if the item cannot finish yet. An item may wait for
  // another stream, and that stream's work may call run_one() for this stream again. `busy` then prevents
  // that the item runs a second time.
  bool run_one(Queue& queue) {
    if (queue.busy) return false;
    queue.busy = true;
    Work work = std::move(queue.work.front());
    queue.work.pop_front();
    time += 1;
    const Opened opened(*this);
    bool finished = true;
    try {
      finished = work();
    } catch (...) {
      if (!failure) failure = std::current_exception();
    }
    if (!finished) queue.work.push_front(std::move(work));
    queue.busy = false;
    return finished;
  }
  void run_all(Queue& queue) {
    if (queue.work.empty()) return;
    const Opened opened(*this);
    while (!frozen && !queue.work.empty() && run_one(queue)) {
    }
  }
  void run_until(const Signal& signal) {
    if (signal.happened) return;
    const Opened opened(*this);
    while (!frozen && !signal.happened && run_one(*signal.on)) {
    }
  }
  // Waits on the host until done() returns true. run() advances the streams that the host waits for. If that
  // is not enough, step() advances all streams.
  template <class Run, class Done>
  void wait_on_host(std::unique_lock<std::recursive_mutex>& lock, Run run, Done done) {
    const auto deadline = std::chrono::steady_clock::now() + kLongestWait;
    for (run(); !frozen && !done(); run()) {
      if (std::chrono::steady_clock::now() > deadline)
        throw CudaError("[cuda] the fake GPU's host has waited 60 s for work that cannot finish");
      step();
      lock.unlock();
      std::this_thread::sleep_for(std::chrono::microseconds(100));
      lock.lock();
    }
    host_waited();
  }
  void host_waited() {
    ++host_waits;
    if (failure) std::rethrow_exception(std::exchange(failure, nullptr));
  }
  // Called when the host polls. Runs the next item of every stream, so that a polling program makes progress.
  void step() {
    for (const auto& queue : queues)
      if (!frozen && !queue->work.empty()) run_one(*queue);
  }
  void* map(int gpu, std::size_t bytes) {
    if (used_by(gpu) + bytes > total) return nullptr;
    void* const data =
        mmap(nullptr, pages(bytes), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (data == MAP_FAILED) return nullptr;
    used_by(gpu) += bytes;
    blocks[data] = {gpu, bytes};
    if (gpu >= 0) mprotect(data, pages(bytes), PROT_NONE);
    return data;
  }
  void unmap(void* data) {
    ++host_waits;
    for (const auto& queue : queues) run_all(*queue);
    const auto found = blocks.find(data);
    used_by(found->second.gpu) -= found->second.bytes;
    munmap(data, pages(found->second.bytes));
    blocks.erase(found);
  }

  // ---- Runtime ----

  int gpu_count(std::string& why_none) override {
    if (gpus() == 0) why_none = "the fake has none";
    return gpus();
  }
  cuda::DeviceProperties properties(int gpu) override {
    return {.name = "Fake " + std::to_string(gpu), .memory = total, .major = 9, .multiprocessors = 4};
  }
  bool can_access(int gpu, int other) override {
    const std::lock_guard lock(mutex);
    return !apart.contains({gpu, other});
  }
  cuda::MemoryInfo memory(int gpu) override {
    const std::lock_guard lock(mutex);
    about(gpu);
    return {total - used_by(gpu), total};
  }
  void choose(int gpu) override {
    const std::lock_guard lock(mutex);
    about(gpu);
  }
  void synchronize(int gpu) override {
    std::unique_lock lock(mutex);
    about(gpu);
    outside_of_captures("synchronize");
    const auto each = [&](auto f) {
      return std::all_of(queues.begin(), queues.end(), [&](const auto& q) { return q->gpu != gpu || f(*q); });
    };
    wait_on_host(
        lock, [&] { each([&](Queue& q) { return run_all(q), true; }); },
        [&] { return each([](Queue& q) { return q.work.empty(); }); });
  }
  void* allocate(int gpu, std::size_t bytes) override {
    const std::lock_guard lock(mutex);
    about(gpu);
    may_break("allocate");
    return map(gpu, bytes);
  }
  void release(int gpu, void* data) noexcept override {
    const std::lock_guard lock(mutex);
    about(gpu);
    if (capture && capture->thread == std::this_thread::get_id()) capture->invalid = "release";
    unmap(data);
  }
  void* allocate_host(int gpu, std::size_t bytes) override {
    const std::lock_guard lock(mutex);
    about_any(gpu);
    return map(-1, bytes);
  }
  void release_host(int gpu, void* data) noexcept override {
    const std::lock_guard lock(mutex);
    about_any(gpu);
    unmap(data);
  }
  void* create_stream(int gpu, bool) override {
    const std::lock_guard lock(mutex);
    about(gpu);
    queues.push_back(std::make_unique<Queue>(Queue{gpu, {}, false}));
    return queues.back().get();
  }
  void destroy_stream(int gpu, void* stream) noexcept override {
    const std::lock_guard lock(mutex);
    about(gpu);
    std::erase_if(queues, [&](const auto& queue) { return queue.get() == stream; });
  }
  bool stream_done(int gpu, void* stream) override {
    const std::lock_guard lock(mutex);
    about(gpu);
    outside_of_captures("stream_done");
    const bool done = static_cast<Queue*>(stream)->work.empty();
    if (!done) step();
    return done;
  }
  void wait_for_stream(int gpu, void* stream) override {
    std::unique_lock lock(mutex);
    about(gpu);
    outside_of_captures("wait_for_stream");
    Queue& queue = *static_cast<Queue*>(stream);
    wait_on_host(
        lock, [&] { run_all(queue); }, [&] { return queue.work.empty() && !queue.busy; });
  }
  void* create_event(int gpu, bool) override {
    const std::lock_guard lock(mutex);
    about(gpu);
    may_break("create_event");
    events.push_back(std::make_unique<FakeEvent>());
    return events.back().get();
  }
  void destroy_event(int gpu, void* event) noexcept override {
    const std::lock_guard lock(mutex);
    about_any(gpu);
    std::erase_if(events, [&](const auto& e) { return e.get() == event; });
  }
  void record_event(int gpu, void* event, void* stream) override {
    const std::lock_guard lock(mutex);
    about(gpu);
    may_break("record_event");
    auto* const queue = static_cast<Queue*>(stream);
    auto signal = std::make_shared<Signal>(Signal{queue});
    *static_cast<FakeEvent*>(event) = {signal, capture && capture->on == queue};
    if (static_cast<FakeEvent*>(event)->captured) return;
    queue->work.emplace_back([this, signal] {
      signal->happened = true;
      signal->at = time;
      return true;
    });
  }
  bool event_done(int gpu, void* event) override {
    const std::lock_guard lock(mutex);
    about_any(gpu);
    outside_of_captures("event_done");
    if (static_cast<FakeEvent*>(event)->captured)
      throw CudaError("[cuda] event_done: cudaErrorCapturedEvent");
    const auto& signal = static_cast<FakeEvent*>(event)->last;
    const bool done = !signal || signal->happened;
    if (!done) step();
    return done;
  }
  void wait_for_event(int gpu, void* event) override {
    std::unique_lock lock(mutex);
    about_any(gpu);
    outside_of_captures("wait_for_event");
    if (static_cast<FakeEvent*>(event)->captured)
      throw CudaError("[cuda] wait_for_event: cudaErrorCapturedEvent");
    const auto signal = static_cast<FakeEvent*>(event)->last;
    wait_on_host(
        lock,
        [&] {
          if (signal) run_until(*signal);
        },
        [&] { return !signal || signal->happened; });
  }
  void stream_waits(int gpu, void* stream, void* event) override {
    const std::lock_guard lock(mutex);
    about(gpu);
    const bool captures = capture && capture->on == stream;
    if (static_cast<FakeEvent*>(event)->captured) {
      // CUDA would make the other stream part of the capture, and then demand that it joins the first one.
      if (!captures) refuse("stream_waits", "cudaErrorStreamCaptureUnjoined");
      return;
    }
    if (captures) refuse("stream_waits", "cudaErrorStreamCaptureIsolation");
    if (const auto signal = static_cast<FakeEvent*>(event)->last)
      static_cast<Queue*>(stream)->work.emplace_back([this, signal] {
        run_until(*signal);
        return signal->happened;
      });
  }
  double milliseconds_between(int gpu, void* begin, void* end) override {
    const std::lock_guard lock(mutex);
    about_any(gpu);
    return static_cast<FakeEvent*>(end)->last->at - static_cast<FakeEvent*>(begin)->last->at;
  }
  void copy(int gpu, void* stream, void* to, const void* from, std::size_t bytes) override {
    const std::lock_guard lock(mutex);
    about(gpu);
    may_break("copy");
    for (const void* const address : {static_cast<const void*>(to), from})
      if (capture && capture->on == stream && !reaches(address))
        refuse("copy", "cudaErrorStreamCaptureUnsupported, because the host's memory is not page-locked");
    put(stream, [=] {
      std::memcpy(to, from, bytes);
      return true;
    });
  }
  void copy_between(int, void* to, int from_gpu, const void* from, std::size_t bytes, void* stream) override {
    const std::lock_guard lock(mutex);
    ++peer_copies;
    copy(from_gpu, stream, to, from, bytes);
  }
  void copy_rows(int gpu, void* stream, void* to, std::size_t to_pitch, const void* from,
                 std::size_t from_pitch, std::size_t width, std::size_t rows) override {
    const std::lock_guard lock(mutex);
    about(gpu);
    put(stream, [=] {
      for (std::size_t r = 0; r < rows; ++r)
        std::memcpy(static_cast<char*>(to) + r * to_pitch, static_cast<const char*>(from) + r * from_pitch,
                    width);
      return true;
    });
  }

  void begin_capture(int gpu, void* stream) override {
    const std::lock_guard lock(mutex);
    about(gpu);
    if (capture) refuse("begin_capture", "cudaErrorIllegalState");
    capture =
        std::make_unique<FakeCapture>(FakeCapture{static_cast<Queue*>(stream), std::this_thread::get_id()});
  }
  void* end_capture(int gpu, void* stream, std::int64_t& nodes) override {
    const std::lock_guard lock(mutex);
    about(gpu);
    const auto ended = std::exchange(capture, nullptr);
    if (!ended || ended->on != stream) throw CudaError("[cuda] end_capture: cudaErrorIllegalState");
    if (!ended->invalid.empty())
      throw CudaError(concat({"[cuda] end_capture: cudaErrorStreamCaptureInvalidated by ", ended->invalid}));
    graphs.push_back(std::make_unique<FakeGraph>(std::move(ended->graph)));
    nodes = static_cast<std::int64_t>(graphs.back()->nodes.size());
    return graphs.back().get();
  }
  void abandon_capture(int gpu, void*) noexcept override {
    const std::lock_guard lock(mutex);
    about(gpu);
    capture.reset();
  }
  void launch_graph(int gpu, void* graph, void* stream) override {
    const std::lock_guard lock(mutex);
    about(gpu);
    for (const Work& node : static_cast<FakeGraph*>(graph)->nodes) put(stream, node);
  }
  void destroy_graph(int gpu, void* graph) noexcept override {
    const std::lock_guard lock(mutex);
    about(gpu);
    std::erase_if(graphs, [&](const auto& g) { return g.get() == graph; });
  }
  bool reaches(const void* address) const {
    auto after = blocks.upper_bound(const_cast<void*>(address));
    if (after == blocks.begin()) return false;
    const auto& [data, block] = *--after;
    return static_cast<const char*>(address) < static_cast<const char*>(data) + pages(block.bytes);
  }
};

FakeGpus::FakeGpus(int gpus, std::size_t memory_each)
    : state_(std::make_unique<FakeGpuState>(gpus, memory_each)),
      devices_(std::make_unique<cuda::Devices>(state_.get())),
      before_(cuda::exchange_devices(devices_.get())) {
  chosen = -1;
}

FakeGpus::~FakeGpus() {
  for (const auto& queue : state_->queues) state_->run_all(*queue);
  cuda::exchange_devices(before_);
}

void FakeGpus::launch(const Stream& stream, std::function<void()> work) {
  launch(stream.native(), std::move(work));
}
void FakeGpus::launch(void* native, std::function<void()> work) {
  const std::lock_guard lock(state_->mutex);
  state_->put(native, [work = std::move(work)] {
    work();
    return true;
  });
}
void FakeGpus::launch_until(void* native, std::function<bool()> work) {
  const std::lock_guard lock(state_->mutex);
  state_->put(native, std::move(work));
}
int FakeGpus::chosen_gpu() { return chosen; }
std::size_t FakeGpus::graphs() const {
  const std::lock_guard lock(state_->mutex);
  return state_->graphs.size();
}
std::int64_t FakeGpus::host_waits() const {
  const std::lock_guard lock(state_->mutex);
  return state_->host_waits;
}
void FakeGpus::freeze(bool on) {
  const std::lock_guard lock(state_->mutex);
  state_->frozen = on;
}
std::size_t FakeGpus::reserved(int gpu) const {
  const std::lock_guard lock(state_->mutex);
  return state_->used_by(gpu);
}
bool FakeGpus::is_in_use(int gpu) const {
  const std::lock_guard lock(state_->mutex);
  return state_->in_use.contains(gpu);
}
void FakeGpus::separate(int gpu, int other) {
  const std::lock_guard lock(state_->mutex);
  state_->apart.insert({{gpu, other}, {other, gpu}});
}
int FakeGpus::copies_between() const {
  const std::lock_guard lock(state_->mutex);
  return state_->peer_copies;
}
void FakeGpus::break_next() {
  const std::lock_guard lock(state_->mutex);
  state_->broken = true;
}

}  // namespace tapestry::testing
