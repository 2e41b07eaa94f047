#pragma once
// The tensors of a module: slots that hold one tensor a replica.
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tapestry/core/tensor.h"

namespace tapestry::nn {

/// A handle on a named slot of a module, used like the tensor in it. The slot holds one tensor, or one a
/// replica; which one is seen follows the context's replica index. Copies of a handle share the slot, so that
/// an optimizer's stays valid whatever becomes of the module; assigning another handle to a module's ties the
/// two: `head.weight = embedding.weight`. A handle without a slot is an undefined tensor (an absent bias).
class TensorSlot {
 public:
  TensorSlot() = default;

  /// The tensor of this context's replica. Throws IndexError if the slot has no such replica.
  const Tensor& tensor() const {
    if (!state_) return none();
    const auto replica = static_cast<std::size_t>(current_context().replica);
    if (replica >= state_->tensors.size()) [[unlikely]]
      no_replica(static_cast<int>(replica));
    return state_->tensors[replica];
  }
  operator const Tensor&() const { return tensor(); }  // NOLINT: a slot stands for its tensor
  const Tensor* operator->() const { return &tensor(); }
  bool defined() const { return state_ != nullptr; }

  int replicas() const { return state_ ? static_cast<int>(state_->tensors.size()) : 0; }
  /// The tensor of one replica. Throws IndexError.
  const Tensor& replica(int index) const;
  /// Puts another tensor in the place of one replica's: what device moves and sharding do. Other threads must
  /// not be using the slot.
  void set_replica(int index, const Tensor& tensor);
  /// Replaces all replicas; at least one.
  void set_replicas(std::vector<Tensor> tensors);

  bool is_same(const TensorSlot& other) const { return state_ == other.state_; }
  /// Identifies the slot, among all that live.
  const void* id() const { return state_.get(); }

 protected:
  TensorSlot(std::string name, Tensor tensor);

 private:
  struct State {
    std::string name;  // for messages
    std::vector<Tensor> tensors;
  };
  static const Tensor& none();
  [[noreturn]] void no_replica(int index) const;

  std::shared_ptr<State> state_;
};

/// A slot whose tensor is trained.
class Parameter : public TensorSlot {
 public:
  Parameter() = default;
  /// Takes over `tensor`'s elements (a dense copy of them if it is a transposed or expanded view), as a leaf
  /// that requires gradients if its dtype is a floating one.
  Parameter(std::string name, const Tensor& tensor);
};

/// A slot whose tensor is state without gradient: running statistics, tables, masks.
class Buffer : public TensorSlot {
 public:
  Buffer() = default;
  Buffer(std::string name, const Tensor& tensor) : TensorSlot(std::move(name), tensor) {}
};

/// A member of a module that every replica has for itself: whatever forward() writes to. Each thread sees the
/// value of its context's replica.
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
