#pragma once
// What record() tells an observer. The check of placements is one
// (distributed/placement/check.h). Without an observer, record() and the end of a node's life each cost a
// load and a branch more.
#include <array>
#include <atomic>
#include <span>

#include "tapestry/autograd/tape.h"

namespace tapestry::autograd {

/// What an operation does that its inputs and outputs do not show.
struct CallDetails {
  static constexpr unsigned kUnknown = ~0u;
  /// Bit d: the operation reduces, mixes, picks from, merges or removes dimension d of its inputs. Of
  /// unsqueeze and stack: the output's new dimension.
  unsigned dims = kUnknown;
  const Dims* order = nullptr;  ///< of a permutation: dimension i of the output is order[i] of the input
  bool mean = false;            ///< of a loss: it is the mean of the rows' losses
  bool linear = true;           ///< false: this call is not linear, although other calls of the operation are
  std::array<const Tensor*, 2> constants = {};  ///< operands that get no gradient, such as indices, or null
};

/// An operation that is being recorded. Undefined inputs are among the inputs.
struct RecordedCall {
  const char* op;
  std::span<const Tensor*const> inputs, outputs;
  const CallDetails& details;
  const Node* node;
  bool in_backward;  ///< a backward pass with create_graph records it
};

/// Functions that threads call at any time.
struct RecordObserver {
  /// Called when an operation has run, before its outputs become part of the graph. If it throws, so does the
  /// operation.
  void (*recorded)(const RecordedCall& call);
  /// Called when a node, also that of a leaf, is destroyed.
  void (*destroyed)(const Node* node) noexcept;
};

namespace impl {
/// The observer of this process, or null. Once set, it must stay: connect() leaves pointers to its inputs,
/// which attach() takes only if it finds an observer.
extern constinit std::atomic<const RecordObserver*> record_observer;
}  // namespace impl

/// Tells an observer the details of the calls that this thread records in this scope:
///
///   const CallNote note({.dims = r.mask});
///   if (recording(x)) record(kSum, y, {&x}, ...);
class CallNote {
 public:
  explicit CallNote(const CallDetails& details) {  // NOLINT: details_ and outer_ are set by enter()
    if (impl::record_observer.load(std::memory_order_relaxed)) [[unlikely]]
      enter(details);
  }
  ~CallNote() {
    if (entered_) [[unlikely]]
      leave();
  }
  CallNote(const CallNote&) = delete;
  CallNote& operator=(const CallNote&) = delete;

 private:
  void enter(const CallDetails& details);
  void leave();
  bool entered_ = false;
  union {  // written only if there is an observer
    CallDetails details_;
  };
  const CallDetails* outer_;
};

}  // namespace tapestry::autograd
