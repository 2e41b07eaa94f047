#pragma once
// LeafGuard finds leaves that would get gradients although their owner does not know them. A pipeline stage
// uses it, because nobody would step, zero or clip a parameter whose module the stage does not list.
#include <cstdint>
#include <functional>
#include <unordered_set>

#include "tapestry/core/tensor.h"

namespace tapestry::autograd {

class LeafNode;

/// Leaves that may get gradients: the leaves that were added, and all leaves that are created after the set,
/// such as inputs that the computation detaches.
class LeafSet {
 public:
  LeafSet();
  /// Adds `leaf` if it requires gradients.
  void add(const Tensor& leaf);
  bool contains(const LeafNode& leaf) const;

 private:
  std::uint64_t created_;
  std::unordered_set<const void*> nodes_;
};

/// In this scope, a backward pass of this thread calls `refuse` before it computes anything, if it would add
/// gradients to a leaf outside the set. `refuse` must throw. Its arguments are the leaf, undefined if the
/// tensor no longer exists, and the name of an operation that used the leaf. The pass costs one lookup more
/// per leaf.
class LeafGuard {
 public:
  using Refuse = std::function<void(const Tensor& leaf, const char* op)>;
  LeafGuard(const LeafSet& allowed, Refuse refuse);
  ~LeafGuard();
  LeafGuard(const LeafGuard&) = delete;
  LeafGuard& operator=(const LeafGuard&) = delete;
  /// The innermost guard of this thread; null if there is none.
  static const LeafGuard* current();

  const LeafSet& allowed;
  const Refuse refuse;

 private:
  const LeafGuard* const outer_;
};

}  // namespace tapestry::autograd
