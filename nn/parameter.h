#pragma once
// The tensors of a module are slots. A slot holds one tensor per replica.
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tapestry/core/tensor.h"

namespace tapestry::nn {

/// A handle to a named slot of a module. It is used like the tensor in the slot. The slot holds one tensor
/// per replica, and the context's replica index selects the tensor. Copies of a handle share the slot, so an
/// optimizer's handles outlive the module. Assigning one module's handle to another ties their weights:
/// `head.weight = embedding.weight`. A handle without a slot is an undefined tensor, such as an absent bias.
class TensorSlot {
 public:
  TensorSlot() = default;

  /// Returns the tensor of the context's replica. Throws IndexError if the slot has no such replica.
  const Tensor& tensor() const {
    if (!state_) return none();
    const auto replica = static_cast<std::size_t>(current_context().replica);
    if (replica >= state_->tensors.size()) [[unlikely]]
      return computed_or_fail(static_cast<int>(replica));
    return state_->tensors[replica];
  }
  operator const Tensor&() const {
    return tensor();
  }  // NOLINT: implicit, because a slot is used like its tensor
  const Tensor* operator->() const { return &tensor(); }
  bool defined() const { return state_ != nullptr; }

  int replicas() const { return state_ ? static_cast<int>(state_->tensors.size()) : 0; }
  /// Returns the tensor of one replica. Throws IndexError.
  const Tensor& replica(int index) const;
  /// Replaces the tensor of one replica, for device moves and sharding. No other thread may use the slot at
  /// the same time.
  void set_replica(int index, const Tensor& tensor);
  /// Replaces the tensors of all replicas. Throws ValueError if the list is empty.
  void set_replicas(std::vector<Tensor> tensors);

  bool is_same(const TensorSlot& other) const { return state_ == other.state_; }
  /// A unique identifier of the slot while the slot exists.
  const void* id() const { return state_.get(); }

  /// True if the slot has no tensors of its own, and a function computes its tensor (Parameter::computed).
  bool is_computed() const { return state_ && state_->tensors.empty(); }

 protected:
  TensorSlot(std::string name, Tensor tensor);
  static TensorSlot computed_slot(std::string name, std::function<Tensor()> compute);

 private:
  friend class ComputedTensors;
  struct State {
    std::string name;  // for error messages
    std::vector<Tensor> tensors;
    std::function<Tensor()> compute = {};  // if there are no tensors
  };
  struct Computed;
  static Computed& computed_entry(const std::shared_ptr<State>& state);
  static const Tensor& none();
  const Tensor& computed_or_fail(int replica) const;
  [[noreturn]] void no_replica(int index) const;

  std::shared_ptr<State> state_;
};

/// A slot that holds a trained tensor.
class Parameter : public TensorSlot {
 public:
  Parameter() = default;
  /// Shares storage with `tensor`, or with a dense copy if `tensor` is a transposed or expanded view. The
  /// parameter is a leaf, and requires a gradient if its dtype is floating-point.
  Parameter(std::string name, const Tensor& tensor);
  /// A slot whose tensor `compute` returns, for example from other parameters. tensor() calls it on each read,
  /// or once during a call of the module (ComputedTensors). It must be safe to call on several threads. Such
  /// a slot has no replicas: a read computes the tensor of the context's replica. A reference from tensor() is
  /// valid until the same thread reads the slot again.
  static Parameter computed(std::string name, std::function<Tensor()> compute);
};

/// While an object of this class exists, reads on this thread and replica of the computed slots among `slots`
/// give the tensor that its constructor computed. A module creates one around each call of forward().
class ComputedTensors {
 public:
  explicit ComputedTensors(const std::vector<Parameter>& slots);
  ~ComputedTensors();
  ComputedTensors(const ComputedTensors&) = delete;
  ComputedTensors& operator=(const ComputedTensors&) = delete;

 private:
  const std::vector<Parameter>& slots_;
};

/// A slot that holds state without a gradient: running statistics, tables, masks.
class Buffer : public TensorSlot {
 public:
  Buffer() = default;
  Buffer(std::string name, const Tensor& tensor) : TensorSlot(std::move(name), tensor) {}
};

/// A module member with one value per replica, for state that forward() writes. Each thread sees the value of
/// its context's replica.
template <class T>
class PerReplica {
 public:
  PerReplica() : values_(new T[kMaxDevices]()) {}
  T& operator*() const { return values_[index()]; }
  T* operator->() const { return &values_[index()]; }

 private:
  static std::size_t index() {
    const int replica = current_context().replica;
    check<IndexError>(replica >= 0 && replica < kMaxDevices, "[PerReplica] replica ", replica,
                      " is out of range; there are at most ", kMaxDevices);
    return static_cast<std::size_t>(replica);
  }
  std::unique_ptr<T[]> values_;
};

}  // namespace tapestry::nn
