#pragma once
// DistributedDataParallel wraps the model of one rank in a job where every rank has the same model and a
// different part of the data.
//
//   auto world = distributed::init_process_group();
//   Net net;
//   distributed::DistributedDataParallel ddp(net, {.process_group = world});
//   optim::SGD optimizer(net.parameters(), {.lr = 0.1});
//   for (auto& [images, labels] : loader) {
//     optimizer.zero_grad();
//     cross_entropy(ddp(images), labels).backward();  // averages gradients while it runs
//     optimizer.step();
//   }
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tapestry/core/timeline.h"
#include "tapestry/distributed/common/comm_hook.h"
#include "tapestry/distributed/common/ddp_report.h"
#include "tapestry/distributed/common/join.h"
#include "tapestry/distributed/common/no_sync.h"
#include "tapestry/nn/module.h"

namespace tapestry::distributed {

class DdpBase;

struct DdpOptions {
  /// The ranks that train together. Required.
  std::shared_ptr<ProcessGroup> process_group = {};
  /// These two options are only checked. Unlike in PyTorch they do not move anything: the model stays where
  /// `model.to(device)` put it. If `device_ids` is not empty, every parameter must be on one of these
  /// devices, and `output_device`, if given, must be one of them. A model on several devices needs neither
  /// option.
  std::vector<Device> device_ids = {};
  std::optional<Device> output_device = {};
  /// Bucket sizes in MiB (2^20 bytes) of gradients.
  double bucket_cap_mb = 25;
  double first_bucket_mb = 1;
  /// In training mode, rank 0's buffers (running statistics) are broadcast before each forward. A forward
  /// under a NoGradGuard or InferenceMode broadcasts nothing.
  bool broadcast_buffers = true;
  /// Searches the graph for unused parameters when a backward pass begins, so that their buckets do not wait
  /// for the end of the pass. If false, unused parameters are found at the end of the pass: the results are
  /// the same, but less communication is hidden.
  bool find_unused_parameters = true;
  /// States that every pass of a rank uses the same parameters as its first one. Then buckets carry no flags
  /// of used parameters: the ranks exchange them once, after the first pass, and may use different
  /// parameters. A rank whose pass misses a parameter throws AutogradError with its name.
  bool static_graph = false;
  /// The ranks compare the options and the step counts of the optimizers that have the model's parameters,
  /// and how often each parameter was changed. On the CPU without static_graph they do so in every pass, with
  /// the gradients. Otherwise they do so in the first two passes and in every check_every-th one, by a small
  /// all-gather; 0 means never.
  int check_every = 16;
  /// mean, or sum: for losses that are divided before backward by the number of samples or targets of all
  /// ranks. The ranks may then have different numbers of them. A communication hook computes means; gradients
  /// are multiplied by the number of ranks before it. If several passes add to a sum, change it between
  /// them in place only, and equally on all ranks. A tensor that set_grad() puts there would count once for
  /// each rank. zero_grad() may drop the sum.
  ReduceOp reduce = ReduceOp::mean;
  /// Rebuilds the buckets after the first pass, in the order in which gradients arrived on rank 0.
  bool relearn_order = true;
  /// Parameters of the model that are neither compared, broadcast nor averaged, for example because ranks
  /// divide them. If these have copies, another DistributedDataParallel over other ranks averages them.
  std::vector<nn::Parameter> ignored_parameters = {};
  /// The other DistributedDataParallel of the same model, or null. The two begin and end passes together, and
  /// post their buckets in one order on all ranks. Set it on the second of the two. Without it, ranks whose
  /// gradients arrive in different orders would wait for each other, for example if one rank skips a mixture
  /// of experts.
  DdpBase* paired_with = nullptr;
};

class Reducer;

/// The part of DistributedDataParallel that does not depend on the model's type. Use DistributedDataParallel.
class DdpBase : public Joinable {
 public:
  DdpBase(const DdpBase&) = delete;
  DdpBase& operator=(const DdpBase&) = delete;

  /// While the result exists, backward passes accumulate into this rank's grad() without communication.
  [[nodiscard]] NoSync no_sync();

  /// PyTorch's join(): trains with ranks that have different numbers of batches. See distributed::join(),
  /// which a ZeroRedundancyOptimizer needs.
  void join(const std::function<void()>& body, const JoinOptions& options = {});
  /// distributed::mean_over_ranks() with this group, also inside join().
  Tensor mean_over_ranks(const Tensor& sum, std::int64_t count);

  /// Collective: broadcasts rank 0's buffers. Call it before an evaluation that is divided among ranks,
  /// because the last forward changed the running statistics of each rank differently.
  void sync_buffers();
  /// Sets a communication hook, which replaces the averaging of buckets. Call it on all ranks, between
  /// passes. An empty hook restores the default.
  void set_comm_hook(CommHook hook);
  /// The times of the last pass that averaged gradients.
  DdpReport report() const;
  /// The parameters that no rank used in the last pass that averaged gradients. Their grad() did not change.
  const std::vector<std::string>& unused_parameters() const;
  /// The parameters of each bucket, in the order in which buckets are reduced.
  std::vector<std::vector<std::string>> buckets() const;
  ProcessGroup& process_group() const;

  const std::shared_ptr<ProcessGroup>& join_group() const override;
  std::string why_not_joinable(const JoinScope& scope) const override;
  void set_join(JoinScope* scope) override;
  void shadow(int action) override;
  void end_join(int lead) override;

 protected:
  DdpBase(nn::Module& model, const DdpOptions& options);
  ~DdpBase() override;
  /// Broadcasts buffers if the model is training. Evaluation makes no collective calls, so one rank may
  /// evaluate alone.
  void before_forward();
  Device device() const;
  /// The number of backward passes that were averaged.
  std::uint64_t passes() const;
  /// Collective: averages what passes under no_sync() have left. A rank calls it instead of a backward pass
  /// that reaches no parameter.
  void pass_without_gradients();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// Wraps a model. The model stays the user's, who trains, saves and evaluates it as usual; parameter names
/// get no prefix. The constructor compares the names, shapes and dtypes of all parameters and buffers between
/// the ranks (ValueError with the difference on every rank if they differ) and broadcasts rank 0's values.
///
/// Every backward pass averages gradients over the ranks, and grad() of each parameter is a view of its
/// bucket. Backward is therefore collective: every rank runs the same passes. If only some ranks used a
/// parameter, the sum of their gradients is divided by the number of all ranks. Parameters that do not
/// require gradients at construction are not averaged. The gradient of a tensor that forward uses but that
/// the model does not contain (a module that was not added, a captured tensor) stays this rank's own.
///
/// A model that changes later (to(), a new layer, an unfrozen parameter) must be wrapped again: the next
/// forward that records throws ValueError with the parameter's name. A rank that froze a parameter throws
/// ValueError if other ranks train it.
///
/// If one rank alone changes values (load_state_dict on rank 0), they are not broadcast. The first pass
/// compares the values of all ranks and throws ValueError with names on every rank if they differ. On the CPU
/// without static_graph, a later pass compares again if the ranks changed their parameters a different number
/// of times (see DdpOptions::check_every for GPUs and static_graph). Temporary changes that are restored
/// before the next pass are not errors. A learning rate or another option of an optimizer that differs
/// between the ranks, or a step that one rank skipped, is a ValueError of the next pass that compares, with
/// the rank, the parameter and both values. check_ranks() compares all values on request.
template <class M>
class DistributedDataParallel : public DdpBase {
 public:
  using Options = DdpOptions;
  /// Collective. Throws ValueError if the ranks' models differ, there is no process group, no parameter
  /// requires gradients, a parameter has replicas or belongs to another DistributedDataParallel, or a bucket
  /// size is out of range. Throws DeviceError if a parameter is not on one of DdpOptions::device_ids.
  DistributedDataParallel(M& model, const DdpOptions& options) : DdpBase(model, options), model_(model) {}

  /// Calls model(args...), with any signature.
  template <class... Args>
  auto operator()(Args&&... args) {
    before_forward();
    const SpanScope span(device(), Activity::forward, "forward");
    return nn::call(model_, std::forward<Args>(args)...);
  }
  M& module() const { return model_; }

 private:
  M& model_;
};

}  // namespace tapestry::distributed
