#pragma once
// The tape: one node an operation, linked to the nodes that produced its inputs.
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <new>
#include <type_traits>
#include <utility>
#include <vector>

#include "tapestry/autograd/slab.h"
#include "tapestry/core/tensor.h"

namespace tapestry::autograd {

class Node;
class GraphTask;
class Backward;
using NodeRef = Ref<Node>;

/// Leads from an operation's input to what produced it: a node and which of its outputs. An input that needs
/// no gradient has no node.
struct Edge {
  NodeRef node;
  std::uint32_t output = 0;
};

/// A place for the gradient of a non-leaf, shared by the tensor and the hook that fills it.
struct RetainedGrad {
  mutable std::atomic<int> refs{1};
  Tensor grad;
  void retain() const { refs.fetch_add(1, std::memory_order_relaxed); }
  void release() const {
    if (refs.fetch_sub(1, std::memory_order_acq_rel) == 1) delete this;
  }
};

/// What a tensor knows of the tape. That of an operation's output lies in the operation's node, which it
/// keeps alive until the tensor dies.
struct Record final : GradRecord {
  NodeRef fn;  // what produced the tensor, or its LeafNode
  Ref<RetainedGrad> retained;
  std::uint32_t output = 0;   // which of fn's outputs it is
  std::uint32_t version = 0;  // of the storage when the view was made
  bool is_view = false;       // of another tensor of the graph
  bool in_node = false;
  std::string note() const override;
  void release() noexcept override;
};

/// One output of a node: what its gradient must look like, where the engine collects that gradient, and the
/// record of the tensor.
struct OutputSlot {
  Shape sizes;
  DType dtype = DType::f32;
  Device device;
  bool owns_gradient = false;  // a sum the engine made, which it may add to in place
  Tensor gradient;
  Record record;
};

/// A tensor kept for backward. Made by save() and save_output(), read through Backward::saved() only.
class SavedTensor {
 public:
  SavedTensor() = default;

 private:
  friend class Backward;
  friend SavedTensor save(const Tensor&);
  friend SavedTensor save_output(const Tensor&);
  struct Packed;
  struct PackedDeleter {
    void operator()(Packed* p) const;
  };
  SavedTensor(Tensor tensor, const Tensor& source);

  Tensor tensor_;
  std::uint32_t version_ = 0;
  std::unique_ptr<Packed, PackedDeleter> packed_;  // when saved-tensor hooks were active
};

/// Keeps an operation's input. Throws AutogradError for a tensor made in inference mode.
SavedTensor save(const Tensor& input);
/// Keeps an operation's output, without the reference cycle output -> node -> output.
SavedTensor save_output(const Tensor& output);

class Node {
 public:
  Node(const Node&) = delete;
  Node& operator=(const Node&) = delete;

  const char* name() const { return name_; }
  std::uint64_t sequence() const { return sequence_; }
  std::uint32_t num_inputs() const { return num_edges_; }
  std::uint32_t num_outputs() const { return num_outputs_; }
  const Edge& edge(std::uint32_t i) const { return edges_[i]; }
  const OutputSlot& output(std::uint32_t i) const { return outputs_[i]; }
  bool is_leaf() const { return leaf_; }
  const Context& context() const { return context_; }

  void retain() const { refs_.fetch_add(1, std::memory_order_relaxed); }
  void release() const {
    // Who holds the only reference need not count down: nobody else can take one.
    if (refs_.load(std::memory_order_acquire) == 1 || refs_.fetch_sub(1, std::memory_order_acq_rel) == 1)
      dispose(const_cast<Node*>(this));
  }

  /// A hook on the gradient of one output; see Tensor::register_hook. `last` puts it behind all others.
  HookHandle add_hook(std::uint32_t output, std::function<Tensor(const Tensor&)> hook, bool last = false);

 protected:
  Node(const char* name, std::uint64_t sequence, Edge* edges, std::uint32_t num_edges, OutputSlot* outputs,
       std::uint32_t num_outputs);
  virtual ~Node();

  /// Computes the gradients of the inputs from those of the outputs.
  virtual void run(Backward& backward) = 0;
  /// Drops what was saved for backward. True if there was anything, so that the node cannot run again.
  virtual bool release_saved() = 0;

  bool leaf_ = false;
  OutputSlot* outputs_;

 private:
  friend class GraphTask;
  friend class Backward;
  struct Hook {
    std::uint64_t id;
    std::uint32_t output;
    bool last;
    std::function<Tensor(const Tensor&)> fn;
  };
  // Without recursion: a chain of a million nodes must not overflow the stack.
  static void dispose(Node* node) noexcept;
  void run_hooks();

  mutable std::atomic<int> refs_{1};
  std::uint32_t num_edges_, num_outputs_;
  const char* name_;
  std::uint64_t sequence_;
  Edge* edges_;
  Context context_;
  std::shared_ptr<std::vector<Hook>> hooks_;  // handles hold it weakly: a handle keeps no graph alive
  // State of the backward pass that this node is part of.
  std::atomic<GraphTask*> task_{nullptr};
  std::uint32_t pending_ = 0;  // gradients still to come
  bool reaches_inputs_ = false;
  bool released_ = false;
  Node* next_disposed_ = nullptr;
};

/// Numbers nodes in creation order, over all threads that share a graph.
std::uint64_t next_sequence();

/// What an operation's backward sees.
class Backward {
 public:
  /// Gradient of an output. Undefined where nothing came back to that output of several.
  const Tensor& grad(std::uint32_t output = 0) const { return node_.outputs_[output].gradient; }
  /// The same, zeros where nothing came back.
  Tensor grad_or_zeros(std::uint32_t output) const;
  /// Whether the gradient of this input is wanted now. False also when an input's and a weight's gradient are
  /// computed apart (backward_inputs) and it is the other one's turn.
  bool needs(std::uint32_t input) const {
    return node_.edges_[input].node && (!wanted_ || (*wanted_)[input]);
  }
  /// Gives the gradient of an input; undefined means zero.
  void set(std::uint32_t input, Tensor grad) { results_[input] = std::move(grad); }
  /// A saved tensor, unpacked. Throws AutogradError if it was changed in place since.
  Tensor saved(const SavedTensor& s) const;
  const char* op_name() const { return node_.name_; }

 private:
  friend class GraphTask;
  Backward(Node& node, Tensor* results, const std::vector<bool>* wanted)
      : node_(node), results_(results), wanted_(wanted) {}
  Node& node_;
  Tensor* results_;
  const std::vector<bool>* wanted_;
};

/// A node whose backward is the callable F: `void(Backward&)`, capturing just what it needs. The node, its
/// edges and its output slots are one piece of a slab.
template <class F>
class OpNode final : public Node {
 public:
  static NodeRef make(const char* name, std::uint32_t num_edges, std::uint32_t num_outputs, Edge*& edges,
                      OutputSlot*& outputs, F&& backward) {
    constexpr std::size_t at =
        (sizeof(OpNode) + alignof(OutputSlot) - 1) / alignof(OutputSlot) * alignof(OutputSlot);
    char* memory =
        static_cast<char*>(slab_allocate(at + num_outputs * sizeof(OutputSlot) + num_edges * sizeof(Edge)));
    outputs = reinterpret_cast<OutputSlot*>(memory + at);
    edges = reinterpret_cast<Edge*>(memory + at + num_outputs * sizeof(OutputSlot));
    for (std::uint32_t i = 0; i < num_outputs; ++i) new (outputs + i) OutputSlot;
    for (std::uint32_t i = 0; i < num_edges; ++i) new (edges + i) Edge;
    return NodeRef::adopt(new (memory)
                              OpNode(name, edges, num_edges, outputs, num_outputs, std::move(backward)));
  }

 private:
  OpNode(const char* name, Edge* edges, std::uint32_t num_edges, OutputSlot* outputs,
         std::uint32_t num_outputs, F&& backward)
      : Node(name, next_sequence(), edges, num_edges, outputs, num_outputs), live_(true) {
    new (&backward_) F(std::move(backward));
  }
  ~OpNode() override { OpNode::release_saved(); }
  void run(Backward& b) override { backward_(b); }
  bool release_saved() override {
    if constexpr (std::is_empty_v<F>) return false;
    if (std::exchange(live_, false)) backward_.~F();
    return true;
  }
  union {
    F backward_;
  };
  bool live_;
};

/// Where a leaf's gradient is accumulated. Owned by the leaf's record and by the edges that lead to it.
class LeafNode final : public Node {
 public:
  static Ref<LeafNode> make(const Tensor& leaf);

  bool requires_grad = true;
  Tensor grad;

  HookHandle add_post_hook(std::function<void(const Tensor&)> hook);
  /// The tensor dies; hooks that run later have nobody to report to.
  void forget_owner();

 private:
  struct PostHook {
    std::uint64_t id;
    std::function<void(const Tensor&)> fn;
  };
  LeafNode(const Tensor& leaf, OutputSlot* output);
  void run(Backward& b) override;
  bool release_saved() override { return false; }

  std::mutex mutex_;  // guards owner_
  TensorImpl* owner_;
  std::shared_ptr<std::vector<PostHook>> post_hooks_;
};

inline Record* record_of(const Tensor& t) { return static_cast<Record*>(t.impl()->grad_record); }
/// Gives the tensor this record in place of the one it has.
inline void set_record(const Tensor& t, Record* record) {
  if (GradRecord* const old = std::exchange(t.impl()->grad_record, record)) old->release();
}
inline bool needs_grad(const Tensor& t) {
  const Record* r = record_of(t);
  return r && (!r->fn->is_leaf() || static_cast<const LeafNode*>(r->fn.get())->requires_grad);
}

}  // namespace tapestry::autograd
