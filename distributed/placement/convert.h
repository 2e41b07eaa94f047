#pragma once
// Conversions between placements: the only functions of a divided model that communicate.
//
//   const Tensor h = gelu(up(convert(x, tensor, Placement::invariant(), Placement::replicated())));
//   const Tensor y = convert(down(h), tensor, Placement::partial(), Placement::invariant());
//
// In two steps, so that other work runs while the ranks communicate:
//
//   PendingConversion pending = begin_convert(x, tensor, Placement::sharded(1), Placement::replicated());
//   const Tensor mask = causal_mask(x);
//   const Tensor whole = pending.finish();
#include <array>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>

#include "tapestry/core/tensor.h"
#include "tapestry/core/timeline.h"
#include "tapestry/distributed/comm/process_group.h"
#include "tapestry/distributed/mesh/mesh.h"
#include "tapestry/distributed/placement/placement.h"

namespace tapestry::distributed {

/// Counts what this rank sends in conversions, in forward and in backward, when a collective is posted.
/// Collectives count as rings: an all-reduce of b bytes over n ranks sends 2 (n - 1) b / n, and an all-gather
/// or a reduce-scatter of b bytes in total (n - 1) b / n. Thread-safe.
class ConversionTraffic {
 public:
  enum class Kind : std::uint8_t { all_reduce, all_gather, reduce_scatter, all_to_all };
  struct Sent {
    std::int64_t calls = 0, bytes = 0;
  };
  /// By Kind.
  struct Counts : std::array<Sent, 4> {
    double exposed_s = 0;  ///< the host waited for them
    const Sent& of(Kind kind) const { return (*this)[static_cast<std::size_t>(kind)]; }
    std::int64_t bytes() const;
    /// What was sent since `before`.
    Counts operator-(const Counts& before) const;
  };

  /// A collective of a tensor with `bytes` over `ranks` ranks. Of an all-gather or a reduce-scatter, `bytes`
  /// are those of a rank's part, and of an all-to-all those that go to other ranks.
  void add(Kind kind, std::size_t bytes, int ranks);
  /// Waits for a collective on this device, and counts how long. `subject` says what it moves.
  void wait(const Work& work, Device device, SpanSubject subject);
  Counts counts() const;
  void reset();

 private:
  mutable std::mutex mutex_;
  Counts counts_ = {};
};

struct ConvertOptions {
  /// The size of the divided dimension of the whole tensor: that of `from`, or of `to` if `from` is not
  /// sharded. If nullopt, all ranks have equal parts.
  std::optional<std::int64_t> whole_size = {};
  /// While placements are checked: a tensor without a placement along the axis gets none by the conversion.
  /// For functions that also serve axes along which a strategy sums gradients, where nothing is placed.
  bool check_if_placed = false;
  /// Backward computes some delayed weight gradients before it waits (autograd/internal/delay.h). If several
  /// conversions are posted one after another, set it only for the one that backward waits for first.
  bool fills_wait = true;
  /// Counts what the conversion and its backward send, if it is not null.
  std::shared_ptr<ConversionTraffic> traffic = {};
};

/// `x`, which is placed as `from` along `axis`, placed as `to`. Collective over the axis, except where the
/// table says "none". Differentiable, also twice: backward converts the gradient from `to.of_gradient()` to
/// `from.of_gradient()`.
///
/// | from        | to          | forward        | backward       |
/// |-------------|-------------|----------------|----------------|
/// | invariant   | replicated  | none           | all-reduce     |
/// | invariant   | varying     | none           | all-reduce     |
/// | invariant   | sharded     | none (a part)  | all-gather     |
/// | replicated  | varying     | none           | none           |
/// | replicated  | sharded     | none (a part)  | none (zeros around the part) |
/// | varying     | partial     | none           | none           |
/// | varying     | sharded     | none           | none           |
/// | partial     | invariant   | all-reduce     | none           |
/// | partial     | replicated  | all-reduce     | all-reduce     |
/// | partial     | sharded     | reduce-scatter | all-gather     |
/// | sharded     | invariant   | all-gather     | none (a part)  |
/// | sharded     | replicated  | all-gather     | reduce-scatter |
/// | sharded     | varying     | none           | none           |
/// | sharded     | partial     | none (zeros around the part) | none (a part) |
/// | sharded(d)  | sharded(e)  | all-to-all     | all-to-all     |
///
/// Throws ValueError for other pairs, IndexError for a dimension that `x` does not have, and ValueError if
/// the dimension cannot be divided into equal parts and `options` do not give its size, or if this rank's
/// part is not that of the size that they give. The axis must be over ranks. With an axis of size 1 the
/// result is `x`. Where nothing is communicated or cut, the result shares its elements with `x`.
///
/// Backward communicates in two steps too: a first node begins, and a second one waits. Nodes of what was
/// computed between begin_convert() and finish() run in between. Where backward communicates, it also
/// computes delayed weight gradients before it waits. If `x` is a leaf, it waits at a later wait, or at its
/// end.
///
/// Sources: Shoeybi et al., "Megatron-LM", 2019 (invariant to replicated, partial to invariant), and
/// Korthikanti et al., "Reducing activation recomputation in large transformer models", 2022 (sharded to
/// replicated, partial to sharded).
Tensor convert(const Tensor& x, const Axis& axis, Placement from, Placement to,
               const ConvertOptions& options = {});

/// A conversion that has begun. Copies are handles to one. If finish() is not called, the ranks communicate
/// all the same, and nobody waits.
class PendingConversion {
 public:
  /// Waits, and returns what convert() returns. Throws DistributedError or TimeoutError if the communication
  /// fails, and ValueError if it was called before.
  Tensor finish();

 private:
  friend PendingConversion begin_convert(const Tensor&, const Axis&, Placement, Placement,
                                         const ConvertOptions&);
  struct State;
  std::shared_ptr<State> state_;
};

/// Begins a conversion, and does not wait. `x` must not be changed before finish(). Throws what convert()
/// throws for its arguments.
PendingConversion begin_convert(const Tensor& x, const Axis& axis, Placement from, Placement to,
                                const ConvertOptions& options = {});

}  // namespace tapestry::distributed
