// Entry points: streams, events and captures.
#include <algorithm>

#include "tapestry/tools/ptx/runtime/api.h"
#include "tapestry/tools/ptx/runtime/graph.h"

using namespace stand_in::api;
namespace driver = stand_in::driver;

namespace {

// Calls f() if the stream exists.
template <class F>
cudaError_t with_stream(const char* name, cudaStream_t stream, F f) {
  return call(name, [&] {
    if (driver::gpu_of(stream, current()) < 0)
      return driver::misused(cudaErrorInvalidResourceHandle, "a stream that does not exist");
    f();
    return cudaSuccess;
  });
}

}  // namespace

extern "C" {

// ---- streams ----

cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int priority) {
  return device_call("cudaStreamCreateWithPriority", [&] {
    return driver::create_stream(current(), flags, std::clamp(priority, kGreatestPriority, kLeastPriority),
                                 stream);
  });
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
  return device_call("cudaStreamCreateWithFlags",
                     [&] { return driver::create_stream(current(), flags, kLeastPriority, stream); });
}
cudaError_t cudaStreamCreate(cudaStream_t* stream) {
  return device_call("cudaStreamCreate", [&] {
    return driver::create_stream(current(), cudaStreamDefault, kLeastPriority, stream);
  });
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  return release_call("cudaStreamDestroy", [&] { return driver::destroy_stream(stream); });
}
cudaError_t cudaStreamGetDevice(cudaStream_t stream, int* gpu) {
  return with_stream("cudaStreamGetDevice", stream, [&] { *gpu = driver::gpu_of(stream, current()); });
}
cudaError_t cudaStreamGetDevice_ptsz(cudaStream_t stream, int* gpu) {
  return cudaStreamGetDevice(own(stream), gpu);
}
cudaError_t cudaStreamGetPriority(cudaStream_t stream, int* priority) {
  return with_stream("cudaStreamGetPriority", stream,
                     [&] { *priority = driver::priority_of(stream, current()); });
}
cudaError_t cudaStreamGetPriority_ptsz(cudaStream_t stream, int* priority) {
  return cudaStreamGetPriority(own(stream), priority);
}
cudaError_t cudaStreamGetFlags(cudaStream_t stream, unsigned* flags) {
  return with_stream("cudaStreamGetFlags", stream, [&] { *flags = driver::flags_of(stream, current()); });
}
cudaError_t cudaStreamGetFlags_ptsz(cudaStream_t stream, unsigned* flags) {
  return cudaStreamGetFlags(own(stream), flags);
}
cudaError_t cudaStreamGetId(cudaStream_t stream, unsigned long long* id) {
  return with_stream("cudaStreamGetId", stream, [&] { *id = driver::id_of(stream, current()); });
}
cudaError_t cudaStreamGetId_ptsz(cudaStream_t stream, unsigned long long* id) {
  return cudaStreamGetId(own(stream), id);
}
cudaError_t cudaStreamSetAttribute(cudaStream_t stream, cudaStreamAttrID, const cudaStreamAttrValue*) {
  return with_stream("cudaStreamSetAttribute", stream, [] {});  // hints for caches and schedulers
}
cudaError_t cudaStreamSetAttribute_ptsz(cudaStream_t stream, cudaStreamAttrID id,
                                        const cudaStreamAttrValue* value) {
  return cudaStreamSetAttribute(own(stream), id, value);
}
cudaError_t cudaStreamQuery(cudaStream_t stream) {
  return device_call("cudaStreamQuery", [&] { return driver::query(stream, current()); });
}
cudaError_t cudaStreamQuery_ptsz(cudaStream_t stream) { return cudaStreamQuery(own(stream)); }
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  return device_call("cudaStreamSynchronize", [&] { return driver::synchronize(stream, current()); });
}
cudaError_t cudaStreamSynchronize_ptsz(cudaStream_t stream) { return cudaStreamSynchronize(own(stream)); }
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags) {
  return device_call("cudaStreamWaitEvent", [&] {
    const bool known = flags == cudaEventWaitDefault || flags == cudaEventWaitExternal;
    return known ? driver::wait(stream, current(), event) : cudaErrorInvalidValue;
  });
}
cudaError_t cudaStreamWaitEvent_ptsz(cudaStream_t stream, cudaEvent_t event, unsigned flags) {
  return cudaStreamWaitEvent(own(stream), event, flags);
}
cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void* data) {
  return device_call("cudaLaunchHostFunc", [&] {
    return enqueue(stream,
                   [&](driver::Operation* made) { return driver::make_host_function(function, data, made); });
  });
}
cudaError_t cudaLaunchHostFunc_ptsz(cudaStream_t stream, cudaHostFn_t function, void* data) {
  return cudaLaunchHostFunc(own(stream), function, data);
}
cudaError_t cudaStreamAddCallback(cudaStream_t stream, cudaStreamCallback_t callback, void* data, unsigned) {
  struct Call {
    cudaStream_t stream;
    cudaStreamCallback_t callback;
    void* data;
  };
  auto* const made = new Call{stream, callback, data};
  const cudaHostFn_t run = [](void* call) {
    const auto* const c = static_cast<Call*>(call);
    c->callback(c->stream, driver::broken(), c->data);
    delete c;
  };
  const cudaError_t error = device_call("cudaStreamAddCallback", [&] {
    return enqueue(stream, [&](driver::Operation* operation) {
      return callback ? driver::make_host_function(run, made, operation) : cudaErrorInvalidValue;
    });
  });
  if (error != cudaSuccess) delete made;
  return error;
}
cudaError_t cudaStreamAddCallback_ptsz(cudaStream_t stream, cudaStreamCallback_t callback, void* data,
                                       unsigned flags) {
  return cudaStreamAddCallback(own(stream), callback, data, flags);
}

// ---- captures ----

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode) {
  return device_call("cudaStreamBeginCapture",
                     [&] { return driver::begin_capture(stream, mode, current()); });
}
cudaError_t cudaStreamBeginCapture_ptsz(cudaStream_t stream, cudaStreamCaptureMode mode) {
  return cudaStreamBeginCapture(own(stream), mode);
}
cudaError_t cudaStreamBeginCaptureToGraph(cudaStream_t stream, cudaGraph_t graph,
                                          const cudaGraphNode_t* after, const cudaGraphEdgeData*,
                                          std::size_t count, cudaStreamCaptureMode mode) {
  return device_call("cudaStreamBeginCaptureToGraph",
                     [&] { return driver::begin_capture(stream, mode, current(), graph, after, count); });
}
cudaError_t cudaStreamBeginCaptureToGraph_ptsz(cudaStream_t stream, cudaGraph_t graph,
                                               const cudaGraphNode_t* after, const cudaGraphEdgeData* edges,
                                               std::size_t count, cudaStreamCaptureMode mode) {
  return cudaStreamBeginCaptureToGraph(own(stream), graph, after, edges, count, mode);
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  const Lock lock(driver::mutex());
  const cudaError_t error = driver::enter("cudaStreamEndCapture");
  const cudaError_t ended = driver::end_capture(stream, graph, current());
  if (error != cudaSuccess && *graph) {  // a capture that fails gives no graph
    driver::destroy_graph(*graph, false);
    *graph = nullptr;
  }
  return noted(error != cudaSuccess ? error : ended);
}
cudaError_t cudaStreamEndCapture_ptsz(cudaStream_t stream, cudaGraph_t* graph) {
  return cudaStreamEndCapture(own(stream), graph);
}
cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
  return call("cudaStreamIsCapturing", [&] {
    return driver::capture_info(stream, current(), status, nullptr, nullptr, nullptr, nullptr);
  });
}
cudaError_t cudaStreamIsCapturing_ptsz(cudaStream_t stream, cudaStreamCaptureStatus* status) {
  return cudaStreamIsCapturing(own(stream), status);
}
cudaError_t cudaStreamGetCaptureInfo(cudaStream_t stream, cudaStreamCaptureStatus* status,
                                     unsigned long long* id, cudaGraph_t* graph,
                                     const cudaGraphNode_t** tails, const cudaGraphEdgeData** edges,
                                     std::size_t* count) {
  return call("cudaStreamGetCaptureInfo", [&] {
    if (edges) *edges = nullptr;  // all edges are plain
    return driver::capture_info(stream, current(), status, id, graph, tails, count);
  });
}
cudaError_t cudaStreamGetCaptureInfo_ptsz(cudaStream_t stream, cudaStreamCaptureStatus* status,
                                          unsigned long long* id, cudaGraph_t* graph,
                                          const cudaGraphNode_t** tails, const cudaGraphEdgeData** edges,
                                          std::size_t* count) {
  return cudaStreamGetCaptureInfo(own(stream), status, id, graph, tails, edges, count);
}
cudaError_t cudaStreamUpdateCaptureDependencies(cudaStream_t stream, cudaGraphNode_t* nodes,
                                                const cudaGraphEdgeData*, std::size_t count, unsigned flags) {
  return call("cudaStreamUpdateCaptureDependencies", [&] {
    return driver::set_capture_tails(stream, current(), nodes, count,
                                     flags == cudaStreamSetCaptureDependencies);
  });
}
cudaError_t cudaStreamUpdateCaptureDependencies_ptsz(cudaStream_t stream, cudaGraphNode_t* nodes,
                                                     const cudaGraphEdgeData* edges, std::size_t count,
                                                     unsigned flags) {
  return cudaStreamUpdateCaptureDependencies(own(stream), nodes, edges, count, flags);
}
cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
  return call("cudaThreadExchangeStreamCaptureMode", [&] { return driver::exchange_mode(mode); });
}

// ---- events ----

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  return device_call("cudaEventCreateWithFlags",
                     [&] { return driver::create_event(current(), flags, event); });
}
cudaError_t cudaEventCreate(cudaEvent_t* event) {
  return device_call("cudaEventCreate",
                     [&] { return driver::create_event(current(), cudaEventDefault, event); });
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  return release_call("cudaEventDestroy", [&] { return driver::destroy_event(event); });
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  return device_call("cudaEventRecord", [&] { return driver::record(event, stream, current()); });
}
cudaError_t cudaEventRecord_ptsz(cudaEvent_t event, cudaStream_t stream) {
  return cudaEventRecord(event, own(stream));
}
cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned flags) {
  return device_call("cudaEventRecordWithFlags", [&] {
    const bool known = flags == cudaEventRecordDefault || flags == cudaEventRecordExternal;
    return known ? driver::record(event, stream, current()) : cudaErrorInvalidValue;
  });
}
cudaError_t cudaEventRecordWithFlags_ptsz(cudaEvent_t event, cudaStream_t stream, unsigned flags) {
  return cudaEventRecordWithFlags(event, own(stream), flags);
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
  return device_call("cudaEventQuery", [&] { return driver::query(event); });
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  return device_call("cudaEventSynchronize", [&] { return driver::synchronize(event); });
}
cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t begin, cudaEvent_t end) {
  return device_call("cudaEventElapsedTime", [&] { return driver::elapsed(ms, begin, end); });
}

}  // extern "C"
