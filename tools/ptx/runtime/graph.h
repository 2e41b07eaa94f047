#pragma once
// Graphs: their nodes, and the calls that make, change and launch them.
#include <driver_types.h>

#include <map>
#include <memory>
#include <set>
#include <vector>

#include "tapestry/tools/ptx/runtime/driver.h"

namespace stand_in {

struct GraphObject;

/// What cudaGraph*NodeGetParams() returns.
struct NodeParameters {
  const void* function = nullptr;  // kernels
  Launch launch = {};
  std::vector<void*> arguments = {};
  cudaMemcpy3DParms copy = {};
  cudaMemsetParams set = {};
  cudaHostNodeParams host = {};
  cudaEvent_t event = nullptr;
};

struct NodeObject {
  GraphObject* graph;
  driver::Operation operation;
  std::vector<NodeObject*> after = {};
  std::unique_ptr<GraphObject> child = nullptr;
  bool enabled = true;
  const NodeObject* copy_of = nullptr;  // in a clone and in an executable graph
};

struct GraphObject {
  bool executable = false;
  bool live = true;
  std::vector<std::unique_ptr<NodeObject>> nodes = {};
  /// For the order of an executable graph's nodes: streams for its branches.
  std::vector<std::uint32_t> branches = {};

  NodeObject* add(driver::Operation operation, std::vector<NodeObject*> after);
  NodeObject* copy_from(const NodeObject* original) const;
  std::unique_ptr<GraphObject> clone() const;
  /// The nodes so that each follows those that it waits for, or an empty list if there is a cycle.
  std::vector<NodeObject*> in_order() const;
};

/// All graphs of the process.
struct Graphs {
  std::map<const void*, std::unique_ptr<GraphObject>> all;

  GraphObject* add(std::unique_ptr<GraphObject> graph);
  GraphObject* find(const void* graph, bool executable) const;
  NodeObject* find_node(const void* node) const;
};

namespace driver {

/// Checks the handles. Adds a node that runs `operation` after `after`.
cudaError_t add_node(cudaGraphNode_t* node, cudaGraph_t graph, const cudaGraphNode_t* after,
                     std::size_t count, Operation operation, cudaGraph_t child = nullptr);
cudaError_t create_graph(cudaGraph_t* graph);
cudaError_t clone_graph(cudaGraph_t* clone, cudaGraph_t graph);
cudaError_t find_in_clone(cudaGraphNode_t* found, cudaGraphNode_t node, cudaGraph_t clone);
cudaError_t destroy_graph(const void* graph, bool executable);
cudaError_t destroy_node(cudaGraphNode_t node);
cudaError_t change_edges(cudaGraph_t graph, const cudaGraphNode_t* from, const cudaGraphNode_t* to,
                         std::size_t count, bool add);
/// Lists of nodes and edges, as CUDA returns them: with a null list only their number, else as many as there
/// is room for, and null handles behind them.
enum class NodeList { all, roots, before, behind };
cudaError_t list_nodes(const void* graph_or_node, NodeList which, cudaGraphNode_t* nodes, std::size_t* count);
cudaError_t list_edges(cudaGraph_t graph, cudaGraphNode_t* from, cudaGraphNode_t* to, std::size_t* count);

/// The operation of a node; null if there is no such node, or if its type is another one.
Operation* operation_of(cudaGraphNode_t node, cudaGraphNodeType type);
/// The same for the node of the executable graph that was made from `node`.
Operation* operation_in(cudaGraphExec_t graph, cudaGraphNode_t node, cudaGraphNodeType type);
cudaError_t type_of(cudaGraphNode_t node, cudaGraphNodeType* type);
cudaError_t child_of(cudaGraphNode_t node, cudaGraph_t* child);
cudaError_t set_child(cudaGraphExec_t graph, cudaGraphNode_t node, cudaGraph_t child);
cudaError_t enabled(cudaGraphExec_t graph, cudaGraphNode_t node, unsigned* get, const unsigned* set);

cudaError_t instantiate(cudaGraphExec_t* ready, cudaGraph_t graph);
/// Replaces the operations of an executable graph by those of a graph of the same shape.
cudaError_t update(cudaGraphExec_t ready, cudaGraph_t graph, cudaGraphExecUpdateResultInfo* result);
cudaError_t launch(cudaGraphExec_t graph, cudaStream_t stream, int current);

// ---- captures ----

/// The error of a call that CUDA permits only outside of captures, or cudaSuccess. It invalidates the
/// capture. `relaxed`: the call is permitted to threads whose mode of captures is relaxed.
cudaError_t outside_of_captures(bool relaxed);
cudaError_t begin_capture(cudaStream_t stream, cudaStreamCaptureMode mode, int current,
                          cudaGraph_t into = nullptr, const cudaGraphNode_t* after = nullptr,
                          std::size_t count = 0);
cudaError_t end_capture(cudaStream_t stream, cudaGraph_t* graph, int current);
cudaError_t exchange_mode(cudaStreamCaptureMode* mode);
cudaError_t capture_info(cudaStream_t stream, int current, cudaStreamCaptureStatus* status,
                         unsigned long long* id, cudaGraph_t* graph, const cudaGraphNode_t** tails,
                         std::size_t* count);
cudaError_t set_capture_tails(cudaStream_t stream, int current, const cudaGraphNode_t* nodes,
                              std::size_t count, bool replace);

}  // namespace driver
}  // namespace stand_in
