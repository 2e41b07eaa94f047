#include "tapestry/core/cuda/capture.h"

#include <atomic>
#include <cstdlib>
#include <string_view>
#include <utility>

#include "tapestry/core/cuda/internal/devices.h"
#include "tapestry/core/cuda/internal/stream_counters.h"
#include "tapestry/core/internal/capture_state.h"
#include "tapestry/core/internal/deferred_check.h"
#include "tapestry/core/stream.h"
#include "tapestry/core/tensor.h"

namespace tapestry::cuda {
namespace {

constinit std::atomic<bool> capturing{false};
class OneCapture {
 public:
  OneCapture() {
    check(!capturing.exchange(true), "[capture] another capture is running; capture one step at a time");
  }
  ~OneCapture() { capturing = false; }
  OneCapture(const OneCapture&) = delete;
  OneCapture& operator=(const OneCapture&) = delete;
};

void check_arguments(const std::function<void()>& step, const CaptureOptions& options) {
  check(static_cast<bool>(step), "[capture] the step is empty; pass a function");
  check(options.warm_up >= 0, "[capture] warm_up is ", options.warm_up, "; it must not be negative");
  check<DeviceError>(options.device.is_cuda(), "[capture] device ", options.device,
                     " is not a CUDA device; pass for example cuda:0");
  check_device("capture", options.device);
  const char* const kind = std::getenv("TAPESTRY_CUDA_ALLOCATOR");
  check<DeviceError>(
      !kind || std::string_view(kind) != "system",
      "[capture] TAPESTRY_CUDA_ALLOCATOR=system frees memory at once, which a graph still needs; "
      "unset it");
}

// While it exists, no pool asks or records events: the driver refuses that in a capture.
class PausedPools {
 public:
  PausedPools() { pause(true); }
  ~PausedPools() { pause(false); }
  PausedPools(const PausedPools&) = delete;
  PausedPools& operator=(const PausedPools&) = delete;

 private:
  static void pause(bool on) {
    for (const auto& device : devices().all()) device->pool.pause_events(on);
    devices().pinned().pause_events(on);
  }
};

}  // namespace

// The graph's memory is what its stream's segments hold. Nobody else has the stream, so nobody else is given
// that memory.
struct CapturedStep::Graph {
  explicit Graph(Device device) : stream(device), logical(devices().at(device)) {
    state->device = device;
    state->stream = stream.stream().id();
    // In the capture they could not be cleared.
    static_cast<void>(stream_counters(stream.stream()));
    logical.pool.hold(state->stream);
  }
  ~Graph() {
    Runtime& runtime = devices().runtime();
    try {
      if (graph) runtime.synchronize(logical.gpu());
    } catch (const Error&) {  // the driver has failed; then nothing uses the memory any more
    }
    if (graph) runtime.destroy_graph(logical.gpu(), graph);
    // What holds memory of the graph goes first.
    state->kept.clear();
    state->before_replay.clear();
    cell = {};
    logical.pool.let_go(stream.stream().id());
  }
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;

  void record(const std::function<void()>& step);

  const ExclusiveStream stream;
  LogicalDevice& logical;
  const std::shared_ptr<detail::CaptureState> state = std::make_shared<detail::CaptureState>();
  Tensor cell;
  void* graph = nullptr;
  std::int64_t nodes = 0;
};

void CapturedStep::Graph::record(const std::function<void()>& step) {
  Runtime& runtime = devices().runtime();
  const Device device = state->device;
  const StreamGuard guard(stream);
  cell = empty({2}, {DType::i64, device});
  state->cell = static_cast<const PhiloxRange*>(cell.raw_data());
  state->generator = &current_generator(device);
  const PausedPools paused;
  runtime.begin_capture(logical.gpu(), stream.stream().native());
  detail::set_current_capture(state.get());
  struct Ended {  // if the step throws
    Runtime& runtime;
    int gpu;
    void* stream;
    bool abandon = true;
    ~Ended() {
      detail::set_current_capture(nullptr);
      if (abandon) runtime.abandon_capture(gpu, stream);
    }
  } ended{runtime, logical.gpu(), stream.stream().native()};
  step();
  ended.abandon = false;
  graph = runtime.end_capture(logical.gpu(), stream.stream().native(), nodes);
}

CapturedStep::CapturedStep(std::unique_ptr<Graph> graph) : graph_(std::move(graph)) {}
CapturedStep::CapturedStep(CapturedStep&&) noexcept = default;
CapturedStep& CapturedStep::operator=(CapturedStep&&) noexcept = default;
CapturedStep::~CapturedStep() = default;

CapturedStep capture(const std::function<void()>& step, const CaptureOptions& options) {
  check_arguments(step, options);
  const OneCapture one;
  auto graph = std::make_unique<CapturedStep::Graph>(options.device);
  const Stream outer = current_stream(options.device), &stream = graph->stream.stream();
  Event ready;
  ready.record(outer);
  stream.wait(ready);
  {
    const StreamGuard guard(stream);
    for (int i = 0; i < options.warm_up; ++i) step();
  }
  // The warm-up may have freed memory of the outer stream's that its kernels still use.
  stream.synchronize();
  graph->record(step);
  return CapturedStep(std::move(graph));
}

void CapturedStep::replay() {
  check(graph_ != nullptr, "[capture] replay() of a step that was moved from");
  detail::refuse_in_capture("CapturedStep::replay", "replay outside of the step");
  Graph& own = *graph_;
  detail::CaptureState& state = *own.state;
  const NoGradGuard no_grad;
  for (const auto& prepare : state.before_replay) prepare();
  if (state.most_drawn > 0) {
    const PhiloxRange range = state.generator->take(state.most_drawn);
    own.cell.narrow(0, 0, 1).fill_(static_cast<std::int64_t>(range.seed));
    own.cell.narrow(0, 1, 1).fill_(static_cast<std::int64_t>(range.offset));
  }
  const Stream on = current_stream(state.device);
  devices().runtime().launch_graph(own.logical.gpu(), own.graph, on.native());
  detail::defer_checks(on, state.checks);
}

std::int64_t CapturedStep::nodes() const {
  check(graph_ != nullptr, "[capture] nodes() of a step that was moved from");
  return graph_->nodes;
}

}  // namespace tapestry::cuda
