#pragma once
// join() lets ranks train with different numbers of batches.
//
//   distributed::join({&ddp, &zero}, [&] {  // or ddp.join([&] { ... }) without ZeRO
//     for (auto& [images, labels] : loader) {  // ranks may have different numbers of batches, and skip some
//       optimizer.zero_grad();
//       cross_entropy(ddp(images), labels).backward();
//       optimizer.step();
//     }
//   });
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tapestry/distributed/comm/process_group.h"

namespace tapestry::distributed {

class JoinScope;

/// PyTorch's options of Join.
struct JoinOptions {
  /// Gradients are divided by the number of ranks. If false, by the number of ranks that still have batches,
  /// so that each of the last batches counts more.
  bool divide_by_initial_world_size = true;
  /// If false, join() only calls its function.
  bool enable = true;
  /// Throws DistributedError on every rank, with the ranks that have ended, as soon as one has ended before
  /// the others. Needed if forward itself is collective (SyncBatchNorm).
  bool throw_on_early_termination = false;
};

/// What join() can keep in step: DistributedDataParallel and ZeroRedundancyOptimizer. The functions are for
/// join().
class Joinable {
 public:
  virtual ~Joinable() = default;
  virtual const std::shared_ptr<ProcessGroup>& join_group() const = 0;
  /// Why join() cannot work with its options and its list; empty if it can.
  virtual std::string why_not_joinable(const JoinScope&) const { return {}; }
  /// Begins, or with null ends, the time in which collective actions are announced.
  virtual void set_join(JoinScope* scope) = 0;
  /// Takes part in an action that the other ranks have announced.
  virtual void shadow(int action) = 0;
  /// Collective: gives all ranks the state of the rank `lead`, which has taken all steps.
  virtual void end_join(int lead) = 0;
};

/// PyTorch's Join. Calls `body`, which trains with this rank's batches. A rank whose body has returned takes
/// part in the collectives of the others, with zeros, until all bodies have returned. Then all ranks get the
/// weights, the buffers and the optimizers' states of a rank that has taken every step. So the ranks are
/// equal again, and the next epoch can follow. A schedule or a GradScaler that is updated with each batch has
/// another state on each rank afterwards: step the schedule behind join(), and load the state of one rank's
/// scaler on all.
///
/// A rank that skips a batch has one pass less: its following passes are averaged with later ones of the
/// other ranks, and it joins earlier. Every rank still applies the same sums.
///
/// Each forward that broadcasts buffers, each averaged backward pass and each step of ZeRO costs one small
/// all-gather besides. Collectives that `body` calls itself are not covered, except ddp.mean_over_ranks().
///
/// Throws ValueError if the list is empty, has several groups or lacks the ZeroRedundancyOptimizer of its
/// model, if the model has SyncBatchNorm layers without throw_on_early_termination, or, on every rank, if the
/// ranks do different things, such as a backward pass on one and a step on another. If `body` throws, join()
/// rethrows the exception and the other ranks fail as they do without join().
void join(const std::vector<Joinable*>& joinables, const std::function<void()>& body,
          const JoinOptions& options = {});

/// Collective: the loss whose gradients DistributedDataParallel and fully_shard() average to those of the
/// mean over all items of all ranks: `sum` times the number of ranks, divided by the sum of `count` over the
/// ranks. `sum` is the sum of the losses of this rank's items, and `count` their number: samples, or the
/// targets that are not ignore_index. The mean of the results over the ranks is the mean loss over all items.
/// If no rank has items, the result is `sum` times 0. Without this call, a rank with few targets would count
/// as much as one with many:
///
///   const Tensor sum = cross_entropy(scores, targets, {.ignore_index = -100, .reduction = Reduction::sum});
///   mean_over_ranks(*world, sum, count_targets(targets, -100)).backward();
///
/// With several micro-batches per step, pass the number of items of the whole step with each of them. Throws
/// ValueError if `count` is negative.
Tensor mean_over_ranks(ProcessGroup& group, const Tensor& sum, std::int64_t count);

/// The number of elements of `targets` that are not `ignore_index`.
std::int64_t count_targets(const Tensor& targets, std::int64_t ignore_index = -100);

}  // namespace tapestry::distributed
