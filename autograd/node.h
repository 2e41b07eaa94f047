#pragma once
// The nodes of the tape: one node per recorded operation, with edges to the nodes that produced its inputs.
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <new>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "tapestry/autograd/slab.h"
#include "tapestry/core/hook_list.h"
#include "tapestry/core/tensor.h"

namespace tapestry::autograd {

class Node;
class GraphTask;
class Backward;
using NodeRef = Ref<Node>;

/// Connects an input of an operation to the output of the node that produced it. `node` is null if the input
/// needs no gradient.
struct Edge {
  NodeRef node;
  std::uint32_t output = 0;
};

/// The gradient of a non-leaf tensor (retain_grad). Shared by the tensor's record and the hook that sets it.
struct RetainedGrad {
  mutable std::atomic<int> refs{1};
  Tensor grad;
  void retain() const { refs.fetch_add(1, std::memory_order_relaxed); }
  void release() const {
    if (refs.fetch_sub(1, std::memory_order_acq_rel) == 1) delete this;
  }
};

/// The tape's data of one tensor. The record of an operation's output is stored in the operation's node, and
/// keeps that node alive until the tensor is destroyed.
struct Record final : GradRecord {
  NodeRef fn;  // the node that produced the tensor, or the LeafNode of a leaf
  Ref<RetainedGrad> retained;
  std::uint32_t output = 0;   // the tensor is this output of fn
  std::uint32_t version = 0;  // if is_view: the version of the storage when the view was made
  bool is_view = false;       // the tensor is a view of another tensor of the graph
  bool in_node = false;       // this record is stored in an OutputSlot of fn, not on the heap
  std::string note() const override;
  void release() noexcept override;
};

/// One output of a node: the properties of its gradient, the sum of the gradients that have arrived in the
/// current backward pass, and the record of the output tensor.
struct OutputSlot {
  Shape sizes;
  DType dtype = DType::f32;
  Device device;
  bool owns_gradient = false;  // `gradient` is a sum that the engine created, so it may add in place
  Tensor gradient;
  Record record;
};

/// A tensor that is saved for backward. Created by save() and save_output(), read only through
/// Backward::saved().
class SavedTensor {
 public:
  SavedTensor() = default;

 private:
  static constexpr std::uint32_t kNotOutput = UINT32_MAX;
  friend class Backward;
  friend SavedTensor save(const Tensor&);
  friend SavedTensor save_output(const Tensor&, std::uint32_t);
  struct Packed;
  struct PackedDeleter {
    void operator()(Packed* p) const;
  };
  SavedTensor(Tensor tensor, const Tensor& source);

  Tensor tensor_;
  std::uint32_t version_ = 0;
  std::uint32_t output_ = kNotOutput;  // the tensor is this output of the node that saves it
  std::unique_ptr<Packed, PackedDeleter>
      packed_;  // if saved-tensor hooks were active; tensor_ is undefined then
};

/// Saves an operation's input. Throws AutogradError if it was created in inference mode.
SavedTensor save(const Tensor& input);
/// Saves output number `index` of the operation that is being recorded. It is saved without its record, to
/// avoid the reference cycle output -> node -> output. Use save() for other tensors that the operation has
/// computed, such as statistics.
SavedTensor save_output(const Tensor& output, std::uint32_t index = 0);

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
  /// True if a pass with create_graph can record the backward of this node.
  bool twice() const { return twice_; }
  const Context& context() const { return context_; }

  void retain() const { refs_.fetch_add(1, std::memory_order_relaxed); }
  void release() const {
    // A sole owner skips the atomic decrement, because no other thread can take a reference.
    if (refs_.load(std::memory_order_acquire) == 1 || refs_.fetch_sub(1, std::memory_order_acq_rel) == 1)
      dispose(const_cast<Node*>(this));
  }

  /// See internal/delay.h.
  void delay_leaves() { delays_ = true; }
  void mark_wait() { waits_ = true; }

  /// Adds a hook on the gradient of one output; see Tensor::register_hook. Hooks with `last` run after all
  /// others.
  HookHandle add_hook(std::uint32_t output, std::function<Tensor(const Tensor&)> hook, bool last = false);

 protected:
  Node(const char* name, std::uint64_t sequence, Edge* edges, std::uint32_t num_edges, OutputSlot* outputs,
       std::uint32_t num_outputs);
  virtual ~Node();

  /// Computes the gradients of the inputs from the gradients of the outputs.
  virtual void run(Backward& backward) = 0;
  /// Frees the saved tensors. Returns true if the node had any, so that it cannot run again.
  virtual bool release_saved() = 0;

  bool leaf_ = false, twice_ = false;
  bool delays_ = false, waits_ = false;  // see internal/delay.h
  OutputSlot* outputs_;

 private:
  friend class GraphTask;
  friend class Backward;
  struct Hook {
    std::uint32_t output;
    bool last;
    std::function<Tensor(const Tensor&)> fn;
  };
  // Destroys the node without recursion: a chain of a million nodes must not overflow the stack.
  static void dispose(Node* node) noexcept;
  void run_hooks();

  mutable std::atomic<int> refs_{1};
  std::uint32_t num_edges_, num_outputs_;
  const char* name_;
  std::uint64_t sequence_;
  Edge* edges_;
  Context context_;
  HookList<Hook> hooks_;
  // The state of this node in a backward pass.
  std::atomic<GraphTask*> task_{nullptr};
  std::uint32_t pending_ = 0;    // edges to this node whose gradient has not arrived yet
  bool reaches_inputs_ = false;  // the pass needs this node to compute a requested gradient
  bool extended_ = false;        // a leaf: its gradient was added to `grad` already, see sum_to_extend()
  bool released_ = false;        // the saved tensors were freed
  Node* next_disposed_ = nullptr;
};

/// The next sequence number. Sequence numbers order the nodes of all threads by their creation.
std::uint64_t next_sequence();

/// The argument of an operation's backward: the gradients of its outputs, its saved tensors, and the place
/// for the gradients of its inputs.
class Backward {
 public:
  /// The gradient of an output. Undefined if the operation has several outputs and this one was not used.
  const Tensor& grad(std::uint32_t output = 0) const { return node_.outputs_[output].gradient; }
  /// The gradient of an output, or zeros if it is undefined.
  Tensor grad_or_zeros(std::uint32_t output) const;
  /// True if backward must compute the gradient of this input. False if the input needs no gradient, or if
  /// backward_inputs() splits the pass and the input belongs to the other half.
  bool needs(std::uint32_t input) const {
    return node_.edges_[input].node && (!wanted_ || (*wanted_)[input]);
  }
  /// Sets the gradient of an input. An undefined tensor means zero.
  void set(std::uint32_t input, Tensor grad) { results_[input] = std::move(grad); }
  /// The saved tensor, unpacked by the saved-tensor hooks if there were any. Throws AutogradError if it was
  /// changed in place after it was saved. If create_graph() is true, the tensor has the history of the input
  /// or output that was saved.
  Tensor saved(const SavedTensor& s) const;
  /// True if the gradients of the inputs must be recorded, because the pass runs with create_graph. A
  /// backward that calls kernels must then compute the gradients by operations instead. False for all nodes
  /// whose operation is not Grad::twice.
  bool create_graph() const { return create_graph_; }
  const char* op_name() const { return node_.name_; }

 private:
  friend class GraphTask;
  /// The place in the graph of a tensor that was saved without its record.
  Edge history_of(const SavedTensor& s) const;
  Backward(Node& node, Tensor* results, const std::vector<bool>* wanted, bool create_graph)
      : node_(node), results_(results), wanted_(wanted), create_graph_(create_graph) {}
  Node& node_;
  Tensor* results_;
  const std::vector<bool>* wanted_;
  bool create_graph_;
};

/// A node whose backward is the callable F, with signature `void(Backward&)`. The node, its edges and its
/// output slots are one allocation in a slab.
template <class F>
class OpNode final : public Node {
 public:
  static NodeRef make(const char* name, std::uint32_t num_edges, std::uint32_t num_outputs, Edge*& edges,
                      OutputSlot*& outputs, F&& backward, bool twice) {
    constexpr std::size_t at =
        (sizeof(OpNode) + alignof(OutputSlot) - 1) / alignof(OutputSlot) * alignof(OutputSlot);
    char* memory =
        static_cast<char*>(slab_allocate(at + num_outputs * sizeof(OutputSlot) + num_edges * sizeof(Edge)));
    outputs = reinterpret_cast<OutputSlot*>(memory + at);
    edges = reinterpret_cast<Edge*>(memory + at + num_outputs * sizeof(OutputSlot));
    for (std::uint32_t i = 0; i < num_outputs; ++i) new (outputs + i) OutputSlot;
    for (std::uint32_t i = 0; i < num_edges; ++i) new (edges + i) Edge;
    return NodeRef::adopt(
        new (memory) OpNode(name, edges, num_edges, outputs, num_outputs, std::move(backward), twice));
  }

 private:
  OpNode(const char* name, Edge* edges, std::uint32_t num_edges, OutputSlot* outputs,
         std::uint32_t num_outputs, F&& backward, bool twice)
      : Node(name, next_sequence(), edges, num_edges, outputs, num_outputs), live_(true) {
    twice_ = twice;
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

/// The node that accumulates the gradient of a leaf. Owned by the leaf's record and by the edges that lead to
/// it.
class LeafNode final : public Node {
 public:
  static Ref<LeafNode> make(const Tensor& leaf);

  bool requires_grad = true;
  Tensor grad;
  /// If set, recording an operation on this leaf throws AutogradError with this text: the leaf is a shard of
  /// a parameter, and an operation on it would be wrong.
  std::shared_ptr<const std::string> not_recordable;
  const std::uint64_t created = next_sequence();  ///< orders leaves by their creation

  HookHandle add_post_hook(std::function<void(const Tensor&)> hook);
  /// The leaf tensor; undefined if it is destroyed or another thread is destroying it.
  Tensor owner();
  /// Called when the leaf tensor is destroyed. Post-accumulate hooks are then not called any more.
  void forget_owner();

 private:
  LeafNode(const Tensor& leaf, OutputSlot* output);
  void run(Backward& b) override;
  bool release_saved() override { return false; }

  std::mutex mutex_;  // guards owner_
  TensorImpl* owner_;
  HookList<std::function<void(const Tensor&)>> post_hooks_;
};

inline Record* record_of(const Tensor& t) { return static_cast<Record*>(t.impl()->grad_record); }
/// Replaces the record of the tensor, and releases the old one.
inline void set_record(const Tensor& t, Record* record) {
  if (GradRecord* const old = std::exchange(t.impl()->grad_record, record)) old->release();
}
inline bool needs_grad(const Tensor& t) {
  const Record* r = record_of(t);
  return r && (!r->fn->is_leaf() || static_cast<const LeafNode*>(r->fn.get())->requires_grad);
}

}  // namespace tapestry::autograd
