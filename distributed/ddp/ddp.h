#pragma once
// DistributedDataParallel: one rank's model in a job where every rank has the same model and its own part of
// the data.
//
//   auto world = distributed::init_process_group();
//   Net net;
//   distributed::DistributedDataParallel ddp(net, {.process_group = world});
//   optim::SGD optimizer(net.parameters(), {.lr = 0.1});
//   for (auto& [images, labels] : loader) {
//     optimizer.zero_grad();
//     cross_entropy(ddp(images), labels).backward();  // gradients are averaged while it runs
//     optimizer.step();
//   }
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tapestry/distributed/ddp/comm_hook.h"
#include "tapestry/distributed/ddp/report.h"
#include "tapestry/distributed/ddp/trace.h"
#include "tapestry/nn/module.h"

namespace tapestry::distributed {

struct DdpOptions {
  /// The ranks that train together; required.
  std::shared_ptr<ProcessGroup> process_group = {};
  /// A model lives where `model.to(device)` put it, and goes on living there: these two move nothing, unlike
  /// PyTorch's. They are checked: every parameter must be on one of `device_ids`, if any are given, and
  /// `output_device`, if given, must be among them. A model over several devices needs neither.
  std::vector<Device> device_ids = {};
  std::optional<Device> output_device = {};
  /// Bucket sizes in MiB (2^20 bytes) of gradients.
  double bucket_cap_mb = 25;
  double first_bucket_mb = 1;
  /// In training, rank 0's buffers (running statistics) are everybody's before each forward.
  bool broadcast_buffers = true;
  /// Parameters that a backward pass does not reach are found in the graph when it begins, so that their
  /// buckets do not wait for the end of the pass. Without it they are found at the end: as right, with less
  /// overlap.
  bool find_unused_parameters = true;
  /// A promise that every pass uses the same parameters as the first one; breaking it is an error on the rank
  /// that does, with the parameters' names. Spares the marks that travel with each bucket.
  bool static_graph = false;
  /// Learn the order of buckets from the first pass; rank 0's is everybody's.
  bool relearn_order = true;
};

class Reducer;

/// What DistributedDataParallel does whatever the model's type; use that.
class DdpBase {
 public:
  DdpBase(const DdpBase&) = delete;
  DdpBase& operator=(const DdpBase&) = delete;

  /// While it lives, backward passes add to grad() of this rank only; the first one after it averages the
  /// sums. Decided when backward runs, wherever forward did.
  class NoSync {
   public:
    explicit NoSync(DdpBase& ddp);
    ~NoSync();
    NoSync(const NoSync&) = delete;
    NoSync& operator=(const NoSync&) = delete;

   private:
    DdpBase& ddp_;
    bool outer_;
  };
  [[nodiscard]] NoSync no_sync() { return NoSync(*this); }

  /// Collective: rank 0's buffers become everybody's. Before an evaluation that ranks share, whose running
  /// statistics are each rank's own since the last forward.
  void sync_buffers();
  /// Replaces the averaging of buckets; on all ranks, between passes. An empty one restores the default.
  void set_comm_hook(CommHook hook);
  /// Of the last synchronised pass.
  DdpReport report() const;
  /// Parameters that no rank's last synchronised pass reached: their grad() was left as it was.
  const std::vector<std::string>& unused_parameters() const;
  /// The parameters of each bucket, in the order in which buckets are reduced.
  std::vector<std::vector<std::string>> buckets() const;
  /// Spans of forward, of the backward of each parameter, and of communication go there; null: nowhere. It
  /// must outlive this object.
  void set_trace(Trace* trace);
  ProcessGroup& process_group() const;

 protected:
  DdpBase(nn::Module& model, const DdpOptions& options);
  ~DdpBase();
  /// Broadcasts buffers where that is due. Evaluation is free of collectives: one rank may do it alone.
  void before_forward();
  void after_forward(Clock::time_point began);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// Wraps a model, which stays the user's and is trained, saved and evaluated as ever: parameter names have no
/// prefix. At construction the ranks compare names, shapes and dtypes of all parameters and buffers
/// (ValueError with the difference, on every rank) and take over rank 0's values. Then every backward pass
/// averages gradients over the ranks: grad() of each parameter is a view of its bucket. Collective, like the
/// model's backward: every rank runs the same passes. A parameter that only some ranks used gets their
/// gradients' sum over the number of all ranks. Parameters that do not require gradients now are left out. A
/// model that changes later (to(), a new layer, parameters that are thawed) has to be wrapped anew: the next
/// forward that records is a ValueError which names the parameter. So is, on the rank that froze it, a pass
/// in which others train a parameter.
///
/// Values that one rank changes alone (load_state_dict on rank 0) stay its own. The first pass compares all
/// ranks' and is a ValueError on every rank, with names, where they differ; on the CPU, without static_graph,
/// so is a later one before which the ranks had not changed them equally often. What comes back to its old
/// values in between, such as averaged weights that rank 0 evaluates with, is none.
template <class M>
class DistributedDataParallel : public DdpBase {
 public:
  using Options = DdpOptions;
  /// Collective. Throws ValueError too if there is no group, nothing to train, a parameter that another one
  /// averages or that has replicas, and for bucket sizes out of range; DeviceError as DdpOptions says.
  DistributedDataParallel(M& model, const DdpOptions& options) : DdpBase(model, options), model_(model) {}

  /// model(args...), whatever its signature.
  template <class... Args>
  auto operator()(Args&&... args) {
    before_forward();
    const Clock::time_point began = Clock::now();
    auto result = nn::call(model_, std::forward<Args>(args)...);
    after_forward(began);
    return result;
  }
  M& module() const { return model_; }

 private:
  M& model_;
};

}  // namespace tapestry::distributed
