// Entry points: graphs.
#include <cstring>

#include "tapestry/tools/ptx/runtime/api.h"
#include "tapestry/tools/ptx/runtime/graph.h"

using namespace stand_in::api;
namespace driver = stand_in::driver;
using driver::Operation;

namespace {

cudaError_t make(const cudaKernelNodeParams& p, Operation* made) {
  Function* const f = function_of(p.func);
  if (!f) return cudaErrorInvalidDeviceFunction;
  if (!p.kernelParams && p.extra)
    return driver::misused(cudaErrorNotSupported, "a kernel node whose arguments are in `extra`");
  const auto limit = f->shared_limit.find(current());
  const cudaError_t error =
      driver::make_launch(f->kernel, p.gridDim, p.blockDim, dim3(0, 0, 0), false, p.sharedMemBytes,
                          limit == f->shared_limit.end() ? kSharedLimit : limit->second, nullptr, current(),
                          p.kernelParams, made);
  if (error == cudaSuccess) made->parameters->function = p.func;
  return error;
}
cudaError_t make(const cudaMemcpy3DParms& p, Operation* made) {
  if (p.srcArray || p.dstArray)
    return driver::misused(cudaErrorNotSupported, "a copy of an array in a graph; arrays are missing");
  const auto side = [](const cudaPitchedPtr& q, const cudaPos& at) {
    return driver::Side{static_cast<char*>(q.ptr) + at.z * q.pitch * q.ysize + at.y * q.pitch + at.x, q.pitch,
                        q.pitch * q.ysize};
  };
  const cudaError_t error =
      driver::make_copy(side(p.dstPtr, p.dstPos), side(p.srcPtr, p.srcPos),
                        {p.extent.width, p.extent.height, p.extent.depth}, p.kind, made);
  made->parameters = std::make_shared<stand_in::NodeParameters>();
  made->parameters->copy = p;
  return error;
}
cudaMemcpy3DParms line(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind) {
  cudaMemcpy3DParms p{};
  p.dstPtr = {to, bytes, bytes, 1};
  p.srcPtr = {const_cast<void*>(from), bytes, bytes, 1};
  p.extent = {bytes, 1, 1};
  p.kind = kind;
  return p;
}
cudaError_t make(const cudaMemsetParams& p, Operation* made) {
  if (p.elementSize != 1 && p.elementSize != 2 && p.elementSize != 4) return cudaErrorInvalidValue;
  const cudaError_t error =
      driver::make_fill({p.dst, p.pitch}, {p.width * p.elementSize, p.height}, p.value, p.elementSize, made);
  made->parameters = std::make_shared<stand_in::NodeParameters>();
  made->parameters->set = p;
  return error;
}
cudaError_t make(const cudaHostNodeParams& p, Operation* made) {
  const cudaError_t error = driver::make_host_function(p.fn, p.userData, made);
  made->parameters = std::make_shared<stand_in::NodeParameters>();
  made->parameters->host = p;
  return error;
}

template <class P>
cudaError_t add(const char* name, cudaGraphNode_t* node, cudaGraph_t graph, const cudaGraphNode_t* after,
                std::size_t count, const P& parameters) {
  return device_call(name, [&] {
    Operation made;
    if (const cudaError_t error = make(parameters, &made); error != cudaSuccess) return error;
    return driver::add_node(node, graph, after, count, std::move(made));
  });
}
// Changes a node, of a graph or of an executable one.
template <class P>
cudaError_t set(const char* name, Operation* operation, const P& parameters) {
  return device_call(name, [&] {
    if (!operation) return cudaErrorInvalidValue;
    Operation made;
    if (const cudaError_t error = make(parameters, &made); error != cudaSuccess) return error;
    *operation = std::move(made);
    return cudaSuccess;
  });
}
template <class F>
cudaError_t get(const char* name, cudaGraphNode_t node, cudaGraphNodeType type, F f) {
  return call(name, [&] {
    const Operation* const operation = driver::operation_of(node, type);
    if (!operation || !operation->parameters) return cudaErrorInvalidValue;
    f(*operation->parameters);
    return cudaSuccess;
  });
}
Operation* locked(cudaGraphNode_t node, cudaGraphNodeType type) {
  const Lock lock(driver::mutex());
  return driver::operation_of(node, type);
}
Operation* locked(cudaGraphExec_t graph, cudaGraphNode_t node, cudaGraphNodeType type) {
  const Lock lock(driver::mutex());
  return driver::operation_in(graph, node, type);
}

}  // namespace

extern "C" {

// ---- graphs ----

cudaError_t cudaGraphCreate(cudaGraph_t* graph, unsigned flags) {
  return call("cudaGraphCreate",
              [&] { return flags != 0 ? cudaErrorInvalidValue : driver::create_graph(graph); });
}
cudaError_t cudaGraphClone(cudaGraph_t* clone, cudaGraph_t graph) {
  return call("cudaGraphClone", [&] { return driver::clone_graph(clone, graph); });
}
cudaError_t cudaGraphNodeFindInClone(cudaGraphNode_t* found, cudaGraphNode_t node, cudaGraph_t clone) {
  return call("cudaGraphNodeFindInClone", [&] { return driver::find_in_clone(found, node, clone); });
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  return release_call("cudaGraphDestroy", [&] { return driver::destroy_graph(graph, false); });
}
cudaError_t cudaGraphDestroyNode(cudaGraphNode_t node) {
  return release_call("cudaGraphDestroyNode", [&] { return driver::destroy_node(node); });
}
cudaError_t cudaGraphAddDependencies(cudaGraph_t graph, const cudaGraphNode_t* from,
                                     const cudaGraphNode_t* to, const cudaGraphEdgeData*, std::size_t count) {
  return call("cudaGraphAddDependencies", [&] { return driver::change_edges(graph, from, to, count, true); });
}
cudaError_t cudaGraphRemoveDependencies(cudaGraph_t graph, const cudaGraphNode_t* from,
                                        const cudaGraphNode_t* to, const cudaGraphEdgeData*,
                                        std::size_t count) {
  return call("cudaGraphRemoveDependencies",
              [&] { return driver::change_edges(graph, from, to, count, false); });
}
cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t* nodes, std::size_t* count) {
  return call("cudaGraphGetNodes",
              [&] { return driver::list_nodes(graph, driver::NodeList::all, nodes, count); });
}
cudaError_t cudaGraphGetRootNodes(cudaGraph_t graph, cudaGraphNode_t* nodes, std::size_t* count) {
  return call("cudaGraphGetRootNodes",
              [&] { return driver::list_nodes(graph, driver::NodeList::roots, nodes, count); });
}
cudaError_t cudaGraphNodeGetDependencies(cudaGraphNode_t node, cudaGraphNode_t* nodes, cudaGraphEdgeData*,
                                         std::size_t* count) {
  return call("cudaGraphNodeGetDependencies",
              [&] { return driver::list_nodes(node, driver::NodeList::before, nodes, count); });
}
cudaError_t cudaGraphNodeGetDependentNodes(cudaGraphNode_t node, cudaGraphNode_t* nodes, cudaGraphEdgeData*,
                                           std::size_t* count) {
  return call("cudaGraphNodeGetDependentNodes",
              [&] { return driver::list_nodes(node, driver::NodeList::behind, nodes, count); });
}
cudaError_t cudaGraphGetEdges(cudaGraph_t graph, cudaGraphNode_t* from, cudaGraphNode_t* to,
                              cudaGraphEdgeData*, std::size_t* count) {
  return call("cudaGraphGetEdges", [&] { return driver::list_edges(graph, from, to, count); });
}
cudaError_t cudaGraphNodeGetType(cudaGraphNode_t node, cudaGraphNodeType* type) {
  return call("cudaGraphNodeGetType", [&] { return driver::type_of(node, type); });
}

// ---- nodes ----

cudaError_t cudaGraphAddKernelNode(cudaGraphNode_t* node, cudaGraph_t graph, const cudaGraphNode_t* after,
                                   std::size_t count, const cudaKernelNodeParams* p) {
  return add("cudaGraphAddKernelNode", node, graph, after, count, *p);
}
cudaError_t cudaGraphAddMemcpyNode(cudaGraphNode_t* node, cudaGraph_t graph, const cudaGraphNode_t* after,
                                   std::size_t count, const cudaMemcpy3DParms* p) {
  return add("cudaGraphAddMemcpyNode", node, graph, after, count, *p);
}
cudaError_t cudaGraphAddMemcpyNode1D(cudaGraphNode_t* node, cudaGraph_t graph, const cudaGraphNode_t* after,
                                     std::size_t count, void* to, const void* from, std::size_t bytes,
                                     cudaMemcpyKind kind) {
  return add("cudaGraphAddMemcpyNode1D", node, graph, after, count, line(to, from, bytes, kind));
}
cudaError_t cudaGraphAddMemsetNode(cudaGraphNode_t* node, cudaGraph_t graph, const cudaGraphNode_t* after,
                                   std::size_t count, const cudaMemsetParams* p) {
  return add("cudaGraphAddMemsetNode", node, graph, after, count, *p);
}
cudaError_t cudaGraphAddHostNode(cudaGraphNode_t* node, cudaGraph_t graph, const cudaGraphNode_t* after,
                                 std::size_t count, const cudaHostNodeParams* p) {
  return add("cudaGraphAddHostNode", node, graph, after, count, *p);
}
cudaError_t cudaGraphAddEmptyNode(cudaGraphNode_t* node, cudaGraph_t graph, const cudaGraphNode_t* after,
                                  std::size_t count) {
  return call("cudaGraphAddEmptyNode",
              [&] { return driver::add_node(node, graph, after, count, Operation{}); });
}
cudaError_t cudaGraphAddChildGraphNode(cudaGraphNode_t* node, cudaGraph_t graph, const cudaGraphNode_t* after,
                                       std::size_t count, cudaGraph_t child) {
  return call("cudaGraphAddChildGraphNode", [&] {
    Operation operation;
    operation.type = cudaGraphNodeTypeGraph;
    return driver::add_node(node, graph, after, count, std::move(operation), child);
  });
}
cudaError_t cudaGraphChildGraphNodeGetGraph(cudaGraphNode_t node, cudaGraph_t* child) {
  return call("cudaGraphChildGraphNodeGetGraph", [&] { return driver::child_of(node, child); });
}

cudaError_t cudaGraphKernelNodeGetParams(cudaGraphNode_t node, cudaKernelNodeParams* p) {
  return get("cudaGraphKernelNodeGetParams", node, cudaGraphNodeTypeKernel,
             [&](stand_in::NodeParameters& from) {
               const auto& l = from.launch;
               *p = {const_cast<void*>(from.function),
                     dim3(l.grid[0], l.grid[1], l.grid[2]),
                     dim3(l.block[0], l.block[1], l.block[2]),
                     static_cast<unsigned>(l.shared_bytes),
                     from.arguments.data(),
                     nullptr};
             });
}
cudaError_t cudaGraphKernelNodeSetParams(cudaGraphNode_t node, const cudaKernelNodeParams* p) {
  return set("cudaGraphKernelNodeSetParams", locked(node, cudaGraphNodeTypeKernel), *p);
}
cudaError_t cudaGraphMemcpyNodeGetParams(cudaGraphNode_t node, cudaMemcpy3DParms* p) {
  return get("cudaGraphMemcpyNodeGetParams", node, cudaGraphNodeTypeMemcpy,
             [&](const auto& from) { *p = from.copy; });
}
cudaError_t cudaGraphMemcpyNodeSetParams(cudaGraphNode_t node, const cudaMemcpy3DParms* p) {
  return set("cudaGraphMemcpyNodeSetParams", locked(node, cudaGraphNodeTypeMemcpy), *p);
}
cudaError_t cudaGraphMemcpyNodeSetParams1D(cudaGraphNode_t node, void* to, const void* from,
                                           std::size_t bytes, cudaMemcpyKind kind) {
  return set("cudaGraphMemcpyNodeSetParams1D", locked(node, cudaGraphNodeTypeMemcpy),
             line(to, from, bytes, kind));
}
cudaError_t cudaGraphMemsetNodeGetParams(cudaGraphNode_t node, cudaMemsetParams* p) {
  return get("cudaGraphMemsetNodeGetParams", node, cudaGraphNodeTypeMemset,
             [&](const auto& from) { *p = from.set; });
}
cudaError_t cudaGraphMemsetNodeSetParams(cudaGraphNode_t node, const cudaMemsetParams* p) {
  return set("cudaGraphMemsetNodeSetParams", locked(node, cudaGraphNodeTypeMemset), *p);
}
cudaError_t cudaGraphHostNodeGetParams(cudaGraphNode_t node, cudaHostNodeParams* p) {
  return get("cudaGraphHostNodeGetParams", node, cudaGraphNodeTypeHost,
             [&](const auto& from) { *p = from.host; });
}
cudaError_t cudaGraphHostNodeSetParams(cudaGraphNode_t node, const cudaHostNodeParams* p) {
  return set("cudaGraphHostNodeSetParams", locked(node, cudaGraphNodeTypeHost), *p);
}

// ---- executable graphs ----

cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t* ready, cudaGraph_t graph, unsigned long long) {
  return device_call("cudaGraphInstantiateWithFlags", [&] { return driver::instantiate(ready, graph); });
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* ready, cudaGraph_t graph, unsigned long long) {
  return device_call("cudaGraphInstantiate", [&] { return driver::instantiate(ready, graph); });
}
cudaError_t cudaGraphInstantiateWithParams(cudaGraphExec_t* ready, cudaGraph_t graph,
                                           cudaGraphInstantiateParams* p) {
  return device_call("cudaGraphInstantiateWithParams", [&] {
    const cudaError_t error = driver::instantiate(ready, graph);
    p->result_out = error == cudaSuccess ? cudaGraphInstantiateSuccess : cudaGraphInstantiateError;
    return error;
  });
}
cudaError_t cudaGraphInstantiateWithParams_ptsz(cudaGraphExec_t* ready, cudaGraph_t graph,
                                                cudaGraphInstantiateParams* p) {
  return cudaGraphInstantiateWithParams(ready, graph, p);
}
cudaError_t cudaGraphExecUpdate(cudaGraphExec_t ready, cudaGraph_t graph,
                                cudaGraphExecUpdateResultInfo* info) {
  return device_call("cudaGraphExecUpdate", [&] {
    cudaGraphExecUpdateResultInfo unused;
    return driver::update(ready, graph, info ? info : &unused);
  });
}
cudaError_t cudaGraphExecKernelNodeSetParams(cudaGraphExec_t graph, cudaGraphNode_t node,
                                             const cudaKernelNodeParams* p) {
  return set("cudaGraphExecKernelNodeSetParams", locked(graph, node, cudaGraphNodeTypeKernel), *p);
}
cudaError_t cudaGraphExecMemcpyNodeSetParams(cudaGraphExec_t graph, cudaGraphNode_t node,
                                             const cudaMemcpy3DParms* p) {
  return set("cudaGraphExecMemcpyNodeSetParams", locked(graph, node, cudaGraphNodeTypeMemcpy), *p);
}
cudaError_t cudaGraphExecMemcpyNodeSetParams1D(cudaGraphExec_t graph, cudaGraphNode_t node, void* to,
                                               const void* from, std::size_t bytes, cudaMemcpyKind kind) {
  return set("cudaGraphExecMemcpyNodeSetParams1D", locked(graph, node, cudaGraphNodeTypeMemcpy),
             line(to, from, bytes, kind));
}
cudaError_t cudaGraphExecMemsetNodeSetParams(cudaGraphExec_t graph, cudaGraphNode_t node,
                                             const cudaMemsetParams* p) {
  return set("cudaGraphExecMemsetNodeSetParams", locked(graph, node, cudaGraphNodeTypeMemset), *p);
}
cudaError_t cudaGraphExecHostNodeSetParams(cudaGraphExec_t graph, cudaGraphNode_t node,
                                           const cudaHostNodeParams* p) {
  return set("cudaGraphExecHostNodeSetParams", locked(graph, node, cudaGraphNodeTypeHost), *p);
}
cudaError_t cudaGraphExecChildGraphNodeSetParams(cudaGraphExec_t graph, cudaGraphNode_t node,
                                                 cudaGraph_t child) {
  return call("cudaGraphExecChildGraphNodeSetParams", [&] { return driver::set_child(graph, node, child); });
}
cudaError_t cudaGraphNodeSetEnabled(cudaGraphExec_t graph, cudaGraphNode_t node, unsigned on) {
  return call("cudaGraphNodeSetEnabled", [&] { return driver::enabled(graph, node, nullptr, &on); });
}
cudaError_t cudaGraphNodeGetEnabled(cudaGraphExec_t graph, cudaGraphNode_t node, unsigned* on) {
  return call("cudaGraphNodeGetEnabled", [&] { return driver::enabled(graph, node, on, nullptr); });
}
cudaError_t cudaGraphUpload(cudaGraphExec_t, cudaStream_t) {
  return device_call("cudaGraphUpload", [] { return cudaSuccess; });
}
cudaError_t cudaGraphUpload_ptsz(cudaGraphExec_t graph, cudaStream_t stream) {
  return cudaGraphUpload(graph, own(stream));
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t graph, cudaStream_t stream) {
  return device_call("cudaGraphLaunch", [&] { return driver::launch(graph, stream, current()); });
}
cudaError_t cudaGraphLaunch_ptsz(cudaGraphExec_t graph, cudaStream_t stream) {
  return cudaGraphLaunch(graph, own(stream));
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t graph) {
  return release_call("cudaGraphExecDestroy", [&] { return driver::destroy_graph(graph, true); });
}

}  // extern "C"
