#include "tapestry/tools/ptx/runtime/graph.h"

#include <algorithm>

#include "tapestry/tools/ptx/runtime/state.h"

namespace stand_in {

NodeObject* GraphObject::add(Operation operation, std::vector<NodeObject*> after) {
  nodes.push_back(std::make_unique<NodeObject>(NodeObject{this, std::move(operation), std::move(after)}));
  return nodes.back().get();
}
NodeObject* GraphObject::copy_from(const NodeObject* original) const {
  for (const auto& node : nodes)
    if (node->copy_of == original) return node.get();
  return nullptr;
}
std::unique_ptr<GraphObject> GraphObject::clone() const {
  auto made = std::make_unique<GraphObject>();
  std::map<const NodeObject*, NodeObject*> copies;
  for (const auto& node : nodes) {
    NodeObject* const copy = made->add(node->operation, {});
    copy->copy_of = node.get();
    copy->enabled = node->enabled;
    if (node->child) copy->child = node->child->clone();
    copies[node.get()] = copy;
  }
  for (const auto& node : nodes)
    for (const NodeObject* const before : node->after) copies[node.get()]->after.push_back(copies[before]);
  return made;
}
std::vector<NodeObject*> GraphObject::in_order() const {
  std::vector<NodeObject*> order;
  std::set<const NodeObject*> done;
  while (order.size() < nodes.size()) {
    const std::size_t before = order.size();
    for (const auto& node : nodes) {
      if (done.contains(node.get())) continue;
      if (!std::all_of(node->after.begin(), node->after.end(),
                       [&](const NodeObject* n) { return done.contains(n); }))
        continue;
      order.push_back(node.get());
      done.insert(node.get());
    }
    if (order.size() == before) return {};
  }
  return order;
}

GraphObject* Graphs::add(std::unique_ptr<GraphObject> graph) {
  GraphObject* const made = graph.get();
  all[made] = std::move(graph);
  return made;
}
GraphObject* Graphs::find(const void* graph, bool executable) const {
  const auto found = all.find(graph);
  const bool fits = found != all.end() && found->second->live && found->second->executable == executable;
  return fits ? found->second.get() : nullptr;
}
NodeObject* Graphs::find_node(const void* node) const {
  const auto in = [&](const auto& self, const GraphObject& graph) -> NodeObject* {
    for (const auto& one : graph.nodes) {
      if (one.get() == node) return one.get();
      if (one->child)
        if (NodeObject* const found = self(self, *one->child)) return found;
    }
    return nullptr;
  };
  for (const auto& [handle, graph] : all)
    if (graph->live && !graph->executable)
      if (NodeObject* const found = in(in, *graph)) return found;
  return nullptr;
}

namespace driver {
namespace {

cudaError_t no_graph() { return misused(cudaErrorInvalidValue, "a graph that does not exist"); }
cudaError_t no_node() { return misused(cudaErrorInvalidValue, "a node of a graph that does not exist"); }

// Child graphs have handles too, which are not in `all`.
GraphObject* graph_of(const void* graph) {
  Graphs& graphs = state().graphs;
  if (GraphObject* const found = graphs.find(graph, false)) return found;
  const auto in = [&](const auto& self, const GraphObject& one) -> GraphObject* {
    for (const auto& node : one.nodes) {
      if (!node->child) continue;
      if (node->child.get() == graph) return node->child.get();
      if (GraphObject* const found = self(self, *node->child)) return found;
    }
    return nullptr;
  };
  for (const auto& [handle, top] : graphs.all)
    if (top->live && !top->executable)
      if (GraphObject* const found = in(in, *top)) return found;
  return nullptr;
}

}  // namespace

cudaError_t create_graph(cudaGraph_t* graph) {
  *graph = reinterpret_cast<cudaGraph_t>(state().graphs.add(std::make_unique<GraphObject>()));
  return cudaSuccess;
}
cudaError_t clone_graph(cudaGraph_t* clone, cudaGraph_t graph) {
  const GraphObject* const object = graph_of(graph);
  if (!object) return no_graph();
  *clone = reinterpret_cast<cudaGraph_t>(state().graphs.add(object->clone()));
  return cudaSuccess;
}
cudaError_t find_in_clone(cudaGraphNode_t* found, cudaGraphNode_t node, cudaGraph_t clone) {
  const GraphObject* const object = graph_of(clone);
  if (!object) return no_graph();
  NodeObject* const copy = object->copy_from(reinterpret_cast<NodeObject*>(node));
  if (!copy) return cudaErrorInvalidValue;
  *found = reinterpret_cast<cudaGraphNode_t>(copy);
  return cudaSuccess;
}
cudaError_t destroy_graph(const void* graph, bool executable) {
  GraphObject* const object = state().graphs.find(graph, executable);
  if (!object) return misused(cudaErrorInvalidValue, "a graph destroyed that does not exist");
  object->live = false;
  return cudaSuccess;
}
cudaError_t add_node(cudaGraphNode_t* node, cudaGraph_t graph, const cudaGraphNode_t* after,
                     std::size_t count, Operation operation, cudaGraph_t child) {
  GraphObject* const object = graph_of(graph);
  if (!object) return no_graph();
  std::vector<NodeObject*> nodes;
  for (std::size_t i = 0; i < count; ++i) {
    NodeObject* const found = state().graphs.find_node(after[i]);
    if (!found || found->graph != object)
      return misused(cudaErrorInvalidValue, "a node that shall follow a node of no graph or of another one");
    nodes.push_back(found);
  }
  const GraphObject* const inner = child ? graph_of(child) : nullptr;
  if (child && !inner) return no_graph();
  NodeObject* const made = object->add(std::move(operation), std::move(nodes));
  if (inner) {
    made->child = inner->clone();
    for (const auto& one : made->child->nodes) one->graph = made->child.get();
  }
  *node = reinterpret_cast<cudaGraphNode_t>(made);
  return cudaSuccess;
}
cudaError_t destroy_node(cudaGraphNode_t node) {
  NodeObject* const found = state().graphs.find_node(node);
  if (!found) return no_node();
  GraphObject& graph = *found->graph;
  for (const auto& other : graph.nodes) std::erase(other->after, found);
  std::erase_if(graph.nodes, [&](const auto& one) { return one.get() == found; });
  return cudaSuccess;
}
cudaError_t change_edges(cudaGraph_t graph, const cudaGraphNode_t* from, const cudaGraphNode_t* to,
                         std::size_t count, bool add) {
  GraphObject* const object = graph_of(graph);
  if (!object) return no_graph();
  for (std::size_t i = 0; i < count; ++i) {
    NodeObject *const before = state().graphs.find_node(from[i]), *const node =
                                                                      state().graphs.find_node(to[i]);
    if (!before || !node || before->graph != object || node->graph != object) return no_node();
    const auto edge = std::find(node->after.begin(), node->after.end(), before);
    if ((edge == node->after.end()) != add) return cudaErrorInvalidValue;
    if (add) node->after.push_back(before);
    else node->after.erase(edge);
  }
  return cudaSuccess;
}
cudaError_t list_nodes(const void* graph_or_node, NodeList which, cudaGraphNode_t* nodes,
                       std::size_t* count) {
  std::vector<const NodeObject*> found;
  if (which == NodeList::all || which == NodeList::roots) {
    const GraphObject* const object = graph_of(graph_or_node);
    if (!object) return no_graph();
    for (const auto& node : object->nodes)
      if (which == NodeList::all || node->after.empty()) found.push_back(node.get());
  } else {
    const NodeObject* const node = state().graphs.find_node(graph_or_node);
    if (!node) return no_node();
    if (which == NodeList::before) found.assign(node->after.begin(), node->after.end());
    else
      for (const auto& other : node->graph->nodes)
        if (std::find(other->after.begin(), other->after.end(), node) != other->after.end())
          found.push_back(other.get());
  }
  if (nodes)
    for (std::size_t i = 0; i < *count; ++i)
      nodes[i] =
          i < found.size() ? reinterpret_cast<cudaGraphNode_t>(const_cast<NodeObject*>(found[i])) : nullptr;
  *count = nodes ? std::min(*count, found.size()) : found.size();
  return cudaSuccess;
}
cudaError_t list_edges(cudaGraph_t graph, cudaGraphNode_t* from, cudaGraphNode_t* to, std::size_t* count) {
  const GraphObject* const object = graph_of(graph);
  if (!object) return no_graph();
  std::size_t n = 0;
  for (const auto& node : object->nodes)
    for (NodeObject* const before : node->after) {
      if (from && to && n < *count) {
        from[n] = reinterpret_cast<cudaGraphNode_t>(before);
        to[n] = reinterpret_cast<cudaGraphNode_t>(node.get());
      }
      ++n;
    }
  *count = from && to ? std::min(*count, n) : n;
  return cudaSuccess;
}

Operation* operation_of(cudaGraphNode_t node, cudaGraphNodeType type) {
  NodeObject* const found = state().graphs.find_node(node);
  if (found && found->operation.type == type) return &found->operation;
  no_node();
  return nullptr;
}
namespace {
NodeObject* node_in(cudaGraphExec_t graph, cudaGraphNode_t node) {
  const GraphObject* const object = state().graphs.find(graph, true);
  NodeObject* const found = object ? object->copy_from(reinterpret_cast<NodeObject*>(node)) : nullptr;
  if (!found) misused(cudaErrorInvalidValue, "an executable graph that does not exist, or has no such node");
  return found;
}
}  // namespace
Operation* operation_in(cudaGraphExec_t graph, cudaGraphNode_t node, cudaGraphNodeType type) {
  NodeObject* const found = node_in(graph, node);
  return found && found->operation.type == type ? &found->operation : nullptr;
}
cudaError_t type_of(cudaGraphNode_t node, cudaGraphNodeType* type) {
  const NodeObject* const found = state().graphs.find_node(node);
  if (!found) return no_node();
  *type = found->operation.type;
  return cudaSuccess;
}
cudaError_t child_of(cudaGraphNode_t node, cudaGraph_t* child) {
  const NodeObject* const found = state().graphs.find_node(node);
  if (!found || !found->child) return no_node();
  *child = reinterpret_cast<cudaGraph_t>(found->child.get());
  return cudaSuccess;
}
cudaError_t set_child(cudaGraphExec_t graph, cudaGraphNode_t node, cudaGraph_t child) {
  NodeObject* const found = node_in(graph, node);
  const GraphObject* const inner = graph_of(child);
  if (!found || !found->child || !inner) return cudaErrorInvalidValue;
  if (inner->nodes.size() != found->child->nodes.size()) return cudaErrorInvalidValue;
  found->child = inner->clone();
  return cudaSuccess;
}
cudaError_t enabled(cudaGraphExec_t graph, cudaGraphNode_t node, unsigned* get, const unsigned* set) {
  NodeObject* const found = node_in(graph, node);
  if (!found) return cudaErrorInvalidValue;
  if (get) *get = found->enabled;
  if (set) found->enabled = *set != 0;
  return cudaSuccess;
}

cudaError_t instantiate(cudaGraphExec_t* ready, cudaGraph_t graph) {
  const GraphObject* const object = graph_of(graph);
  if (!object) return no_graph();
  if (object->in_order().size() != object->nodes.size())
    return misused(cudaErrorInvalidValue, "a graph whose nodes wait for each other in a circle");
  auto made = object->clone();
  made->executable = true;
  *ready = reinterpret_cast<cudaGraphExec_t>(state().graphs.add(std::move(made)));
  return cudaSuccess;
}
cudaError_t update(cudaGraphExec_t ready, cudaGraph_t graph, cudaGraphExecUpdateResultInfo* result) {
  GraphObject* const to = state().graphs.find(ready, true);
  const GraphObject* const from = graph_of(graph);
  if (!to || !from) return no_graph();
  const auto differs = [&](const NodeObject* node, cudaGraphExecUpdateResult why) {
    result->result = why;
    result->errorNode = reinterpret_cast<cudaGraphNode_t>(const_cast<NodeObject*>(node));
    result->errorFromNode = nullptr;
    return cudaErrorGraphExecUpdateFailure;
  };
  // The nodes of both correspond by their positions, and so must their edges.
  const auto position = [](const GraphObject& g, const NodeObject* node) {
    return std::find_if(g.nodes.begin(), g.nodes.end(), [&](const auto& n) { return n.get() == node; }) -
           g.nodes.begin();
  };
  const auto compare = [&](const auto& self, const GraphObject& a, const GraphObject& b) -> cudaError_t {
    if (a.nodes.size() != b.nodes.size()) return differs(nullptr, cudaGraphExecUpdateErrorTopologyChanged);
    for (std::size_t i = 0; i < a.nodes.size(); ++i) {
      const NodeObject &x = *a.nodes[i], &y = *b.nodes[i];
      if (x.operation.type != y.operation.type) return differs(&y, cudaGraphExecUpdateErrorNodeTypeChanged);
      bool same = x.after.size() == y.after.size() && !x.child == !y.child;
      for (std::size_t e = 0; same && e < x.after.size(); ++e)
        same = position(a, x.after[e]) == position(b, y.after[e]);
      if (!same) return differs(&y, cudaGraphExecUpdateErrorTopologyChanged);
      if (x.child)
        if (const cudaError_t error = self(self, *x.child, *y.child); error != cudaSuccess) return error;
    }
    return cudaSuccess;
  };
  if (const cudaError_t error = compare(compare, *to, *from); error != cudaSuccess) return error;
  auto made = from->clone();
  for (std::size_t i = 0; i < to->nodes.size(); ++i) {
    to->nodes[i]->operation = std::move(made->nodes[i]->operation);
    to->nodes[i]->child = std::move(made->nodes[i]->child);
  }
  *result = {};
  result->result = cudaGraphExecUpdateSuccess;
  return cudaSuccess;
}
namespace {

void join(OrderPoint& to, const OrderPoint& from) {
  if (to.size() < from.size()) to.resize(from.size());
  for (std::size_t i = 0; i < from.size(); ++i) to[i] = std::max(to[i], from[i]);
}

// Appends the operations of the nodes so that each comes after those that it waits for. They run in one
// stream, but the order of work knows only the edges: the nodes of a branch, in which each waits for the one
// before it, share a stream of it. `begin` is before all nodes; returns the point after all of them.
OrderPoint flatten(GraphObject& graph, const OrderPoint& begin, std::vector<Operation>& to) {
  StreamOrder* const order = state().order.get();
  std::map<const NodeObject*, OrderPoint> after;
  std::vector<const NodeObject*> last;  // of each branch
  OrderPoint end = begin;
  for (NodeObject* const node : graph.in_order()) {
    OrderPoint before = begin;
    for (const NodeObject* const dependency : node->after) join(before, after[dependency]);
    if (node->child) {
      before = flatten(*node->child, before, to);
    } else if (node->enabled && node->operation.run) {
      Operation operation = node->operation;
      if (order && !operation.what.empty()) {
        std::size_t branch = 0;
        while (branch < last.size() &&
               std::find(node->after.begin(), node->after.end(), last[branch]) == node->after.end())
          ++branch;
        if (branch == last.size()) last.push_back(node);
        last[branch] = node;
        if (branch == graph.branches.size())
          graph.branches.push_back(order->add_stream(text("branch ", branch + 1, " of a graph")));
        const StreamOrder::Stream stream = graph.branches[branch];
        order->wait(stream, before);
        operation.work = order->enqueue(stream, operation.what);
        before = order->record(stream);
      }
      to.push_back(std::move(operation));
    }
    join(end, before);
    after[node] = std::move(before);
  }
  return end;
}

}  // namespace

cudaError_t launch(cudaGraphExec_t graph, cudaStream_t stream, int current) {
  GraphObject* const object = state().graphs.find(graph, true);
  if (!object) return misused(cudaErrorInvalidValue, "cudaGraphLaunch of a graph that does not exist");
  StreamObject* const on = state().stream_of(stream, current);
  if (on && on->capture) {  // it becomes a child graph
    Operation operation;
    operation.type = cudaGraphNodeTypeGraph;
    NodeObject* const made = on->capture->graph->add(std::move(operation), on->tails);
    made->child = object->clone();
    on->tails = {made};
    return cudaSuccess;
  }
  if (!on) return misused(cudaErrorInvalidResourceHandle, "a stream that does not exist");
  state().order_with_null(*on);
  std::vector<Operation> operations;
  const OrderPoint end = flatten(*object, state().point_of(*on), operations);
  for (Operation& operation : operations)
    if (const cudaError_t error = enqueue(stream, current, std::move(operation)); error != cudaSuccess)
      return error;
  state().order_after(*on, end);
  return cudaSuccess;
}

}  // namespace driver
}  // namespace stand_in
