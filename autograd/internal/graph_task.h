#pragma once
// One backward pass. Not in tapestry.h: internal to the engine.
#include <unordered_map>

#include "tapestry/autograd/engine.h"
#include "tapestry/autograd/node.h"

namespace tapestry::autograd {

/// A gradient that enters the graph: at an output of a node.
struct Seed {
  NodeRef node;
  std::uint32_t output;
  Tensor gradient;
};

/// A node whose weights' gradients were put off: the gradients of its outputs, and which inputs are still
/// wanted.
struct Postponed {
  NodeRef node;
  std::vector<Tensor> gradients;
  std::vector<bool> wanted;
};

struct WeightGradients::Impl {
  std::vector<Postponed> nodes;
  std::vector<Seed> seeds;
};

class GraphTask {
 public:
  explicit GraphTask(bool retain_graph);
  ~GraphTask();
  GraphTask(const GraphTask&) = delete;
  GraphTask& operator=(const GraphTask&) = delete;

  /// Asks for the gradient at this place instead of the leaves' accumulation. Before run().
  void capture(const Edge& place);
  /// Puts off what does not lead to a captured place. Before run().
  void postpone_into(WeightGradients::Impl* weights) { postponed_ = weights; }
  /// Runs to the end. Throws what a node or hook throws, with the graph left in a usable state.
  void run(std::vector<Seed> seeds, std::vector<Postponed> resumed = {});
  /// The gradient captured at the i-th place; undefined if none arrived.
  const Tensor& captured(std::size_t i) const { return captures_[i].gradient; }

  static GraphTask* current();
  const BackwardPass& pass() const { return pass_; }
  bool retains_graph() const { return retain_graph_; }
  bool accumulates() const { return !selective_; }
  bool postpones() const { return postponed_ != nullptr; }
  bool includes(const Node* node) const { return node->task_.load(std::memory_order_acquire) == this; }
  /// Run when the pass has ended.
  std::vector<std::function<void()>> callbacks;
  /// Run when the backward of the node that is running has returned.
  std::vector<std::function<void()>> after_node;

 private:
  struct Capture {
    Node* node;
    std::uint32_t output;
    Tensor gradient;
  };
  // What a node held for an outer backward pass that is in progress on this thread.
  struct Displaced {
    Node* node;
    GraphTask* task;
    std::uint32_t pending;
    bool reaches_inputs;
    std::vector<Tensor> gradients;
  };

  bool claim(Node* node);
  void explore(std::vector<Node*>& stack);
  void mark_paths_to_captures();
  void make_ready(Node* node);
  void execute(Node* node);
  void call(Node* node, const std::vector<bool>* wanted);
  void deliver(Node* from, std::uint32_t input, Tensor&& gradient);
  void add_to_output(OutputSlot& slot, Tensor&& gradient);

  const BackwardPass pass_;
  const bool retain_graph_;
  bool selective_ = false;
  WeightGradients::Impl* postponed_ = nullptr;
  GraphTask* const outer_;
  std::vector<NodeRef> roots_;
  std::vector<Node*> claimed_, ready_;
  std::vector<Tensor> results_;  // of the node that is running: the gradients of its inputs
  std::vector<Displaced> displaced_;
  std::vector<Capture> captures_;
  std::unordered_multimap<Node*, std::size_t> captures_at_;
};

}  // namespace tapestry::autograd
