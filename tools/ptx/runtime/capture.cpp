// Captures: streams whose operations become nodes of a graph.
#include <algorithm>

#include "tapestry/tools/ptx/runtime/state.h"

namespace stand_in::driver {
namespace {

thread_local cudaStreamCaptureMode thread_mode = cudaStreamCaptureModeGlobal;

std::unique_ptr<CaptureObject> take(CaptureObject* capture) {
  auto& all = state().captures;
  const auto found =
      std::find_if(all.begin(), all.end(), [&](const auto& one) { return one.get() == capture; });
  auto taken = std::move(*found);
  all.erase(found);
  return taken;
}

// Whether the captured work of all streams is before the nodes `ends`.
bool joined(const CaptureObject& capture, const std::vector<NodeObject*>& ends) {
  std::set<const NodeObject*> before;
  std::vector<const NodeObject*> open(ends.begin(), ends.end());
  while (!open.empty()) {
    const NodeObject* const node = open.back();
    open.pop_back();
    if (before.insert(node).second) open.insert(open.end(), node->after.begin(), node->after.end());
  }
  return std::all_of(capture.streams.begin(), capture.streams.end(), [&](const StreamObject* stream) {
    return std::all_of(stream->tails.begin(), stream->tails.end(),
                       [&](const NodeObject* node) { return before.contains(node); });
  });
}

}  // namespace

cudaError_t outside_of_captures(bool relaxed) {
  for (const auto& capture : state().captures) {
    if (capture->mode == cudaStreamCaptureModeThreadLocal && capture->thread != std::this_thread::get_id())
      continue;
    if (relaxed &&
        (thread_mode == cudaStreamCaptureModeRelaxed || capture->mode == cudaStreamCaptureModeRelaxed))
      continue;
    capture->valid = false;
    return cudaErrorStreamCaptureUnsupported;
  }
  return cudaSuccess;
}
cudaError_t begin_capture(cudaStream_t stream, cudaStreamCaptureMode mode, int current, cudaGraph_t into,
                          const cudaGraphNode_t* after, std::size_t count) {
  State& s = state();
  StreamObject* const object = s.stream_of(stream, current);
  if (!object) return misused(cudaErrorInvalidResourceHandle, "a stream that does not exist");
  if (object == &s.null_streams[static_cast<std::size_t>(object->gpu)])
    return cudaErrorStreamCaptureUnsupported;
  if (object->capture) return cudaErrorIllegalState;
  GraphObject* graph = into ? s.graphs.find(into, false) : nullptr;
  if (into && !graph) return misused(cudaErrorInvalidValue, "a graph that does not exist");
  std::vector<NodeObject*> tails;
  for (std::size_t i = 0; i < count; ++i) {
    NodeObject* const node = s.graphs.find_node(after[i]);
    if (!node || node->graph != graph) return cudaErrorInvalidValue;
    tails.push_back(node);
  }
  // Until the capture ends, the program has no handle of a new graph.
  if (!graph) {
    graph = s.graphs.add(std::make_unique<GraphObject>());
    graph->live = false;
  }
  s.captures.push_back(std::make_unique<CaptureObject>(CaptureObject{
      object, mode, std::this_thread::get_id(), graph, into == nullptr, true, s.next_id++, {object}}));
  object->capture = s.captures.back().get();
  object->tails = std::move(tails);
  return cudaSuccess;
}
cudaError_t end_capture(cudaStream_t stream, cudaGraph_t* graph, int current) {
  State& s = state();
  StreamObject* const object = s.stream_of(stream, current);
  *graph = nullptr;
  if (!object || !object->capture || object->capture->origin != object)
    return misused(cudaErrorIllegalState, "cudaStreamEndCapture of a stream that is not captured");
  const auto ended = take(object->capture);
  const bool complete = joined(*ended, object->tails);
  for (StreamObject* const one : ended->streams) {
    one->capture = nullptr;
    one->tails.clear();
  }
  for (const auto& [handle, event] : s.events)
    if (event->capture == ended.get()) {
      event->capture = nullptr;
      event->last = nullptr;
    }
  if (ended->owns_graph) ended->graph->live = false;
  if (ended->mode == cudaStreamCaptureModeThreadLocal && ended->thread != std::this_thread::get_id())
    return cudaErrorStreamCaptureWrongThread;
  if (!ended->valid) return cudaErrorStreamCaptureInvalidated;
  if (!complete) return cudaErrorStreamCaptureUnjoined;
  ended->graph->live = true;
  *graph = reinterpret_cast<cudaGraph_t>(ended->graph);
  return cudaSuccess;
}
cudaError_t exchange_mode(cudaStreamCaptureMode* mode) {
  std::swap(*mode, thread_mode);
  return cudaSuccess;
}
cudaError_t capture_info(cudaStream_t stream, int current, cudaStreamCaptureStatus* status,
                         unsigned long long* id, cudaGraph_t* graph, const cudaGraphNode_t** tails,
                         std::size_t* count) {
  StreamObject* const object = state().stream_of(stream, current);
  if (!object) return misused(cudaErrorInvalidResourceHandle, "a stream that does not exist");
  CaptureObject* const capture = object->capture;
  *status = !capture         ? cudaStreamCaptureStatusNone
            : capture->valid ? cudaStreamCaptureStatusActive
                             : cudaStreamCaptureStatusInvalidated;
  if (!capture || !capture->valid) return cudaSuccess;
  if (id) *id = capture->id;
  if (graph) {
    capture->graph->live = true;  // now the program has its handle
    *graph = reinterpret_cast<cudaGraph_t>(capture->graph);
  }
  if (tails) *tails = reinterpret_cast<const cudaGraphNode_t*>(object->tails.data());
  if (count) *count = object->tails.size();
  return cudaSuccess;
}
cudaError_t set_capture_tails(cudaStream_t stream, int current, const cudaGraphNode_t* nodes,
                              std::size_t count, bool replace) {
  StreamObject* const object = state().stream_of(stream, current);
  if (!object || !object->capture) return cudaErrorIllegalState;
  std::vector<NodeObject*> tails = replace ? std::vector<NodeObject*>{} : object->tails;
  for (std::size_t i = 0; i < count; ++i) {
    NodeObject* const node = state().graphs.find_node(nodes[i]);
    if (!node || node->graph != object->capture->graph) return cudaErrorInvalidValue;
    tails.push_back(node);
  }
  object->tails = std::move(tails);
  return cudaSuccess;
}

}  // namespace stand_in::driver
