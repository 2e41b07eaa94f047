// Streams and events.
#include <algorithm>
#include <chrono>
#include <thread>

#include "tapestry/tools/ptx/runtime/state.h"

namespace stand_in::driver {
namespace {

cudaError_t no_stream() { return misused(cudaErrorInvalidResourceHandle, "a stream that does not exist"); }
std::uint64_t noted_calls = 0;  // under the mutex, like all that follows
bool has_progress = false, progress_ended = false;

// Runs until the process ends. Tests decide themselves when work runs.
void make_progress() {
  constexpr std::chrono::milliseconds kLook(100);
  constexpr int kLooks = 5;
  std::uint64_t seen = 0;
  for (int looks = 0;;) {
    if (looks < kLooks) std::this_thread::sleep_for(kLook);
    const std::lock_guard lock(mutex());
    if (progress_ended) return;
    looks = noted_calls == seen && epoch() == 0 ? looks + 1 : 0;
    seen = noted_calls;
    if (looks >= kLooks && !state().step()) looks = kLooks - 1;
  }
}

cudaError_t no_event() { return misused(cudaErrorInvalidResourceHandle, "an event that does not exist"); }

}  // namespace

void note_call() { ++noted_calls; }
void may_wait_by_itself() {
  if (has_progress || epoch() > 0) return;
  has_progress = true;
  std::thread(make_progress).detach();
}
void end_progress() {
  const std::lock_guard lock(mutex());
  progress_ended = true;
}

cudaError_t create_stream(int gpu, unsigned flags, int priority, cudaStream_t* stream) {
  if (!stream || (flags != cudaStreamDefault && flags != cudaStreamNonBlocking)) return cudaErrorInvalidValue;
  auto made = std::make_unique<StreamObject>(StreamObject{gpu, flags, priority});
  made->id = state().next_id++;
  *stream = reinterpret_cast<cudaStream_t>(made.get());
  state().streams_made.push_back(made.get());
  state().streams[made.get()] = std::move(made);
  return cudaSuccess;
}
// Destroys a stream. As in CUDA, the work that was enqueued before still runs.
cudaError_t destroy_stream(cudaStream_t stream) {
  StreamObject* const object = stream ? state().stream_of(stream, 0) : nullptr;
  if (!object || stream == cudaStreamPerThread || stream == cudaStreamLegacy)
    return misused(cudaErrorInvalidResourceHandle, "cudaStreamDestroy of a stream that does not exist");
  object->live = false;
  return state().broken;
}
int gpu_of(cudaStream_t stream, int current) {
  const StreamObject* const object = state().stream_of(stream, current);
  return object ? object->gpu : -1;
}
int priority_of(cudaStream_t stream, int current) { return state().stream_of(stream, current)->priority; }
unsigned flags_of(cudaStream_t stream, int current) { return state().stream_of(stream, current)->flags; }
std::uint64_t id_of(cudaStream_t stream, int current) { return state().stream_of(stream, current)->id; }

cudaError_t enqueue(cudaStream_t stream, int current, Operation operation) {
  State& s = state();
  StreamObject* const object = s.stream_of(stream, current);
  if (!object) return no_stream();
  if (CaptureObject* const capture = object->capture) {
    if (!capture->valid) return cudaErrorStreamCaptureInvalidated;
    object->tails = {capture->graph->add(std::move(operation), object->tails)};
    return cudaSuccess;
  }
  // The legacy stream would have to wait for a stream that is captured.
  if (object == &s.null_streams[static_cast<std::size_t>(object->gpu)])
    for (const auto& capture : s.captures)
      for (const StreamObject* captured : capture->streams)
        if (captured->gpu == object->gpu && !(captured->flags & cudaStreamNonBlocking)) {
          capture->valid = false;
          return cudaErrorStreamCaptureImplicit;
        }
  if (operation.type == cudaGraphNodeTypeHost) may_wait_by_itself();
  s.order_with_null(*object);
  s.enter_order(*object, operation);
  object->work.push_back(std::move(operation));
  return cudaSuccess;
}

cudaError_t query(cudaStream_t stream, int current) {
  StreamObject* const object = state().stream_of(stream, current);
  if (!object) return no_stream();
  if (const cudaError_t error = outside_of_captures(false); error != cudaSuccess) return error;
  const bool done = object->work.empty();
  if (done) state().host_after(*object);
  else state().step();
  return state().broken != cudaSuccess ? state().broken : done ? cudaSuccess : cudaErrorNotReady;
}
cudaError_t synchronize(cudaStream_t stream, int current) {
  StreamObject* const object = state().stream_of(stream, current);
  if (!object) return no_stream();
  if (const cudaError_t error = outside_of_captures(false); error != cudaSuccess) return error;
  state().order_with_null(*object);
  state().run_all(*object);
  state().host_after(*object);
  return state().broken;
}
cudaError_t synchronize_gpu(int gpu) {
  if (const cudaError_t error = outside_of_captures(false); error != cudaSuccess) return error;
  for (bool ran = true; ran;) {  // host functions of other threads may enqueue more
    ran = false;
    std::vector<StreamObject*> streams;
    state().each_stream([&](StreamObject& stream) {
      if (stream.gpu == gpu && !stream.work.empty()) streams.push_back(&stream);
    });
    for (StreamObject* const stream : streams) {
      state().run_all(*stream);
      ran = true;
    }
  }
  state().each_stream([&](StreamObject& stream) {
    if (stream.gpu == gpu) state().host_after(stream);
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
  object->capture = on->capture;
  if (on->capture) {
    object->tails = on->tails;
    return on->capture->valid ? cudaSuccess : cudaErrorStreamCaptureInvalidated;
  }
  state().order_with_null(*on);
  object->last = state().signal_in(*on);
  return cudaSuccess;
}
cudaError_t wait(cudaStream_t stream, int current, cudaEvent_t event) {
  EventObject* const object = state().event_of(event);
  StreamObject* const waiting = state().stream_of(stream, current);
  if (!object) return no_event();
  if (!waiting) return no_stream();
  if (CaptureObject* const capture = object->capture) {
    if (!capture->valid) return cudaErrorStreamCaptureInvalidated;
    if (waiting->capture && waiting->capture != capture) {
      capture->valid = waiting->capture->valid = false;
      return cudaErrorStreamCaptureMerge;
    }
    if (!waiting->capture) {
      waiting->capture = capture;
      waiting->tails.clear();
      capture->streams.push_back(waiting);
    }
    for (NodeObject* const node : object->tails)
      if (std::find(waiting->tails.begin(), waiting->tails.end(), node) == waiting->tails.end())
        waiting->tails.push_back(node);
    return cudaSuccess;
  }
  if (waiting->capture) {
    if (!object->last) return cudaSuccess;  // the event was never recorded
    waiting->capture->valid = false;        // the graph would depend on work outside of it
    return cudaErrorStreamCaptureIsolation;
  }
  if (object->last) {
    state().order_with_null(*waiting);
    state().make_wait(*waiting, object->last);
  }
  return cudaSuccess;
}
cudaError_t query(cudaEvent_t event) {
  EventObject* const object = state().event_of(event);
  if (!object) return no_event();
  if (object->capture) return cudaErrorCapturedEvent;
  if (const cudaError_t error = outside_of_captures(false); error != cudaSuccess) return error;
  const bool done = !object->last || object->last->reached;
  if (!done) state().step();
  else if (object->last) state().host_after(object->last->point);
  return state().broken != cudaSuccess ? state().broken : done ? cudaSuccess : cudaErrorNotReady;
}
cudaError_t synchronize(cudaEvent_t event) {
  EventObject* const object = state().event_of(event);
  if (!object) return no_event();
  if (object->capture) return cudaErrorCapturedEvent;
  if (const cudaError_t error = outside_of_captures(false); error != cudaSuccess) return error;
  const auto signal = object->last;
  if (signal) {
    state().run_until(*signal);
    state().host_after(signal->point);
  }
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

}  // namespace stand_in::driver
