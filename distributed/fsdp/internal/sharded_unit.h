#pragma once
// ShardedUnit: the parameters that fully_shard() gathers and reduces together.
#include <exception>
#include <memory>
#include <string>
#include <vector>

#include "tapestry/core/stream.h"
#include "tapestry/distributed/fsdp/fsdp.h"
#include "tapestry/distributed/fsdp/internal/sharded_parameter.h"
#include "tapestry/nn/module.h"

namespace tapestry::distributed {

class ShardedModel;
using Groups = std::vector<std::shared_ptr<ProcessGroup>>;  // by replica

/// Owned by the forward scopes of its module, and by handles. The methods with a `replica` are called by the
/// thread of that replica. What they post depends only on the program and on the order of nodes in a backward
/// pass, never on timing, because all ranks must post the same collectives in the same order.
class ShardedUnit : public std::enable_shared_from_this<ShardedUnit> {
 public:
  struct Member {
    nn::Parameter slot;
    std::shared_ptr<ShardedParameter> parameter;
  };

  ShardedUnit(nn::Module& module, const FsdpOptions& options, const Groups& groups);
  ~ShardedUnit();
  ShardedUnit(const ShardedUnit&) = delete;
  ShardedUnit& operator=(const ShardedUnit&) = delete;

  /// The unit of a module, or null.
  static std::shared_ptr<ShardedUnit> of(const nn::Module& module);
  /// Null after the module was destroyed.
  nn::Module* module() const { return module_; }
  /// Makes of() find this unit, until forget_module(), which the module's destructor calls.
  void enlist();
  void forget_module();
  /// "blocks.3", or the type of a module without a path
  std::string label() const;
  std::string path_of(const std::string& name) const;

  /// Shards a slot of the module. Or takes a parameter from another unit. For `devices` see ShardedParameter.
  void add(const std::string& name, const nn::Parameter& slot, const std::vector<Device>& devices = {});
  void take_from(ShardedUnit& other, const nn::Parameter& slot, const std::string& name);
  const std::vector<Member>& members() const { return members_; }
  bool has_parameters() const { return !members_.empty(); }
  /// Where the replica computes. The unit must have parameters.
  Device device(int replica) const;

  ShardedModel& model() const { return *model_; }
  void set_model(std::shared_ptr<ShardedModel> model) { model_ = std::move(model); }
  const Groups& groups() const { return groups_; }
  /// Replaces groups that have failed by new ones of the same ranks. No replica may compute.
  void set_groups(const Groups& groups);
  const FsdpOptions options;
  bool reshards = false;  ///< after forward

  /// True if the calling thread is inside forward of the model that this unit belongs to.
  bool is_computing() const;
  void refill(int replica);
  void on_gradient(int replica, ShardedParameter& parameter);

  // ---- steps of one replica ----
  bool is_full(int replica) const { return at(replica).full; }
  bool is_arriving(int replica) const { return at(replica).arriving; }
  bool is_trained(int replica) const;
  /// Throws ValueError, with the path, if a shard was changed since the unit was gathered.
  void check_current(int replica) const;
  /// The number of parameters that get a gradient from the backward pass in progress on this thread.
  int count_reached(int replica) const;
  /// The number of scopes that need the full parameters now.
  int users(int replica) const { return at(replica).users; }
  void add_user(int replica);
  void remove_user(int replica);
  void post_gather(int replica);
  /// Waits for the gather, and makes the parameters full.
  void finish_gather(int replica);
  /// Waits for a gather that nobody needs.
  void drop_gather(int replica) noexcept;
  void release(int replica);

  /// Posts the reduce-scatter, and the all-reduce over the copies of the model, if there are any. Without
  /// `all_reduce`, the sums of the shards wait for the next call that has it.
  void post_scatter(int replica, bool all_reduce);
  /// Waits for the reduce-scatter, and frees what it has read. If no all-reduce follows, gives the shards
  /// their gradients. Or, if the shards are in host memory, begins to copy the gradients there.
  void finish_scatter(int replica);
  bool is_summing(int replica) const { return !at(replica).all_reduces.empty(); }
  /// Waits for the all-reduce, and does the same.
  void finish_all_reduce(int replica);
  /// Waits for the copies to the host, and gives the shards their gradients.
  void land(int replica);
  /// Forgets gradients of a pass that failed.
  void drop_gradients(int replica) noexcept;
  /// True if passes under no_sync() left gradients on the full parameters, or, with `all_reduce`, if passes
  /// under no_all_reduce() left sums of this copy of the model.
  bool has_unreduced(int replica, bool all_reduce) const {
    return at(replica).unreduced || (all_reduce && at(replica).has_partial);
  }
  void set_unreduced(int replica);

  FsdpUnitReport report(int replica) const;
  void reset_report();

 private:
  struct State {
    int users = 0;
    bool full = false, arriving = false, scattering = false, unreduced = false, has_partial = false;
    Work gather;
    std::vector<std::size_t> reduced_members;  // whose gradients the reduce-scatter in flight reduces
    std::vector<Tensor> reduced;
    std::vector<bool> used;  // by member: whether this rank has a gradient
    Tensor flags;            // by reduced member: the mean or sum of the ranks' flags
    Work scatter;
    std::vector<Work> all_reduces;           // over the copies of the model, one for each dtype
    std::vector<std::int64_t> buffer_bytes;  // of each of them
    bool complete = true;          // the reduction in flight gives gradients, and not sums of one copy
    std::vector<Tensor> partial;   // by member: such sums; undefined if no rank of the copy used the member
    std::vector<Tensor> uploaded;  // if offloaded: the shards on the GPU
    Event upload_done;
    std::vector<Tensor> landing;  // if offloaded: the reduced gradients in host memory
    Event landed;
    FsdpUnitReport report;
  };
  State& at(int replica) { return states_[static_cast<std::size_t>(replica)]; }
  const State& at(int replica) const { return states_[static_cast<std::size_t>(replica)]; }
  ProcessGroup& group(int replica) const { return *groups_[static_cast<std::size_t>(replica)]; }
  std::string collective_name(const char* what) const;
  bool is_offloaded(int replica) const {
    return !members_.empty() && members_[0].parameter->is_offloaded(replica);
  }
  void await_upload(int replica);
  std::vector<Tensor> outputs_for(const std::vector<Tensor>& inputs, int replica,
                                  std::vector<Tensor>* buffers) const;
  void add_partial(int replica, std::size_t member, Tensor& gradient);
  bool is_used_anywhere(const State& s, std::size_t i, Tensor& flags) const;
  void take_reduced(int replica, const std::vector<Work>& works);
  void deliver(int replica, std::vector<Tensor> reduced);
  std::int64_t full_bytes(int replica) const;
  void wait_for(int replica, const Work& work, const char* what, std::int64_t bytes, const ProcessGroup& over,
                double& transport_s, double& exposed_s) const;

  nn::Module* module_;
  std::shared_ptr<ShardedModel> model_;
  Groups groups_;
  std::vector<Member> members_;
  std::vector<State> states_;
};

}  // namespace tapestry::distributed
