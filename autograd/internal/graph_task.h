#pragma once
// GraphTask: one backward pass of the engine.
#include <algorithm>
#include <deque>
#include <initializer_list>
#include <unordered_map>
#include <vector>

#include "tapestry/autograd/engine.h"
#include "tapestry/autograd/internal/leaf_guard.h"
#include "tapestry/autograd/internal/nested.h"
#include "tapestry/autograd/node.h"

namespace tapestry::autograd {

/// A gradient that the caller passes in, for one output of a node. If it is undefined, it is 1.
struct Seed {
  NodeRef node;
  std::uint32_t output;
  Tensor gradient;
};

/// A node whose weight gradients backward_inputs() or the pass itself (delay.h) postpones. It stores the
/// gradients of the node's outputs, and which inputs of the node still need a gradient.
struct Postponed {
  NodeRef node;
  std::vector<Tensor> gradients;
  std::vector<bool> wanted;
  bool has_run = false;  // for its other inputs, in the pass that delays it
};

struct WeightGradients::Impl {
  std::vector<Postponed> nodes;
  std::vector<Seed> seeds;
};

class GraphTask {
 public:
  explicit GraphTask(bool retain_graph, bool create_graph = false);
  ~GraphTask();
  GraphTask(const GraphTask&) = delete;
  GraphTask& operator=(const GraphTask&) = delete;

  /// Makes the pass return the gradient that arrives through `edge`, see captured(). A pass with captures
  /// computes only the gradients that the captured ones depend on, and adds none to grad() of leaves. Call
  /// before run().
  void capture(const Edge& edge);
  /// Makes the pass store in `*weights` all nodes that capture() does not need, so that
  /// WeightGradients::accumulate() can compute their gradients later. Without this call, the pass skips these
  /// nodes. Call before run().
  void postpone_into(WeightGradients::Impl* weights) { postponed_ = weights; }
  /// Runs the whole pass. Rethrows an exception of a node or hook; the graph is then still usable.
  void run(std::vector<Seed> seeds, std::vector<Postponed> resumed = {});
  /// The gradient of the i-th capture; undefined if no gradient arrived.
  const Tensor& captured(std::size_t i) const { return captures_[i].gradient; }

  /// The pass in progress on this thread; null if there is none.
  static GraphTask* current();
  const BackwardPass& pass() const { return pass_; }
  bool retains_graph() const { return retain_graph_; }
  bool accumulates() const { return !selective_; }
  bool postpones() const { return postponed_ != nullptr; }
  /// For a backward that can add its gradient to an existing sum: the dense tensor to which the running node
  /// must add the gradient of its input, instead of setting it. This is what has arrived at the input's node
  /// so far, or, if nothing has and no other part will, the grad() of a leaf. Undefined if there is no such
  /// sum, if someone must see this part alone (a hook of the leaf, a pass with create_graph, DetectAnomaly),
  /// if others may read what has arrived, or if the sum shares memory with one of `operands`, from which the
  /// part is computed.
  Tensor sum_to_extend(std::uint32_t input, std::initializer_list<const Tensor*> operands);
  /// See left_out.h.
  bool gradient_is_one() const { return contains(implied_); }
  bool masks_gradient(std::uint32_t input);
  bool gradient_is_masked() const { return contains(masked_); }
  /// The sequence number of the last node that ran, leaves excepted; UINT64_MAX before the first, and in a
  /// pass that resumes postponed nodes. A node runs only after all nodes that use its outputs, which are
  /// newer, and the newest ready node runs first. So the numbers of a pass decrease. A node whose weight
  /// gradients are delayed has not run until they are computed.
  std::uint64_t position() const {
    return delayed_.empty() ? position_ : std::max(position_, delayed_.front().node->sequence());
  }
  /// The same, where a node whose weight gradients are delayed counts as run.
  std::uint64_t reached() const { return position_; }
  /// The sequence numbers of the pass's nodes, leaves excepted, in ascending order.
  std::vector<std::uint64_t> sequences() const;
  bool includes(const Node* node) const { return node->task_.load(std::memory_order_acquire) == this; }
  /// Called at the end of the pass.
  std::vector<std::function<void()>> callbacks;
  /// Functions that the engine calls once, after the backward of the current node has returned.
  std::vector<std::function<void()>> after_node;

 private:
  struct Capture {
    Node* node;
    std::uint32_t output;
    Tensor gradient;
  };
  // The state of a node in an outer pass on this thread. It is saved here while this nested pass uses the
  // node.
  struct Displaced {
    Node* node;
    GraphTask* task;
    std::uint32_t pending;
    bool reaches_inputs, extended;
    std::vector<Tensor> gradients;
  };

  // Whether the running node is one of these.
  bool contains(const std::vector<const Node*>& nodes) const {
    return running_ && std::find(nodes.begin(), nodes.end(), running_) != nodes.end();
  }
  // Whether nothing but the nodes themselves sees the gradient that an edge passes to the node.
  bool is_private(const Node& node) const;
  bool claim(Node* node);
  void explore(std::vector<Node*>& stack);
  void check_leaves(const LeafGuard& guard) const;
  void check_twice() const;
  void mark_paths_to_captures();
  void make_ready(Node* node);
  void execute(Node* node);
  void run_next();
  bool delay(Node* node);
  void run_delayed(std::size_t count);
  void call(Node* node, const std::vector<bool>* wanted, bool again = false);
  void deliver(Node* from, std::uint32_t input, Tensor&& gradient);
  void add_to_output(OutputSlot& slot, Tensor&& gradient);

  const BackwardPass pass_;
  const bool retain_graph_, create_graph_;
  bool selective_ = false, resumes_ = false;
  std::uint64_t position_ = UINT64_MAX;
  const Node* running_ = nullptr;
  const NodeObserver* const observer_ = NodeObserver::current();
  std::vector<const Node*> implied_, masked_;
  WeightGradients::Impl* postponed_ = nullptr;
  GraphTask* const outer_;
  std::vector<NodeRef> roots_;
  std::vector<Node*> claimed_, ready_;
  std::deque<Postponed> delayed_;  // see delay.h
  std::size_t left_ = 0;           // of them, the oldest ones, which the last wait has left
  std::vector<Tensor> results_;    // the gradients of the current node's inputs
  std::vector<Displaced> displaced_;
  std::vector<Capture> captures_;
  std::unordered_multimap<Node*, std::size_t> captures_at_;
};

}  // namespace tapestry::autograd
