#pragma once
// fully_shard divides the parameters of a model, their gradients and the optimizer's state among the ranks
// that train it. A rank has all parameters of a part of the model only while that part computes.
//
//   auto world = distributed::init_process_group();
//   GPT net(config);
//   const distributed::FsdpOptions options{.group = world};
//   for (nn::Module* block : net.blocks.children()) distributed::fully_shard(*block, options);
//   auto sharded = distributed::fully_shard(net, options);           // the model itself comes last
//   optim::AdamW optimizer(net.parameters(), {.lr = 3e-4});          // sees this rank's shards
//   for (auto& [tokens, targets] : loader) {
//     optimizer.zero_grad();
//     cross_entropy(net(tokens), targets).backward();
//     optimizer.step();
//   }
//
// Source: Zhao et al., "PyTorch FSDP: experiences on scaling fully sharded data parallel", 2023, and
// Rajbhandari et al., "ZeRO: memory optimizations toward training trillion parameter models", 2020 (stage 3).
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tapestry/distributed/comm/process_group.h"
#include "tapestry/distributed/common/no_sync.h"
#include "tapestry/nn/module.h"

namespace tapestry::distributed {

/// The dtypes in which a sharded unit computes and communicates. The shards keep the dtype of the parameters,
/// so the optimizer, clipping and checkpoints see f32 parameters and gradients, whatever is chosen here. The
/// names are those of PyTorch's FSDP2.
struct MixedPrecisionPolicy {
  /// The dtype of the full parameters, in which they are gathered and forward and backward compute: f16 or
  /// bf16 halve the bytes of an all-gather of f32 shards and the memory of full parameters. If nullopt, the
  /// dtype of the shards.
  std::optional<DType> param_dtype = {};
  /// The dtype in which gradients are reduced. If nullopt, that of the full parameters' gradients. f32 gives
  /// sums of many ranks that are rounded once.
  std::optional<DType> reduce_dtype = {};
  /// The dtype to which floating-point outputs of the module's forward are cast. If nullopt, they stay.
  std::optional<DType> output_dtype = {};
  /// Casts floating-point inputs of the module's forward to param_dtype.
  bool cast_forward_inputs = true;
};

struct FsdpOptions {
  /// The ranks that share the parameters. Each trains on its part of the data. Required.
  std::shared_ptr<ProcessGroup> group = {};
  /// HSDP: the ranks that have the same shards of other copies of the model, and train on other data. The
  /// gradients of a unit are reduced over `group` first. Then the shards are all-reduced over this group,
  /// while backward goes on. So 1/group->size() of the bytes travels between copies, which are usually on
  /// different hosts. The two groups are a row and a column of a grid: mesh["shard"].group() and
  /// mesh["replicate"].group(). Null, or a group of one rank: there is one copy. All ranks pass it, or none.
  /// All units have the same one, but see own_replicate_group.
  std::shared_ptr<ProcessGroup> replicate_group = {};
  /// The unit may have another replicate_group than the units around it, or none: another axis divides all of
  /// its parameters, which have fewer copies than other parameters. Experts are such parameters
  /// (expert_parallel()).
  bool own_replicate_group = false;
  /// If true, the unit frees its full parameters after forward, and gathers them again for backward. If
  /// false, it keeps them until its backward: more memory, one gather less. If nullopt, false for the model
  /// itself, whose parameters backward needs at once, and true for the units inside it.
  std::optional<bool> reshard_after_forward = {};
  /// The number of units whose parameters are full at one time: the unit that computes, and those that are
  /// gathered ahead of it. With 1, nothing is gathered ahead. The units that contain the computing unit, and
  /// units that are kept full, are not counted. The model's own option counts.
  int max_full_units = 2;
  /// Where parameters and buffers on the meta device get their memory and their initial values, one unit at a
  /// time. If nullopt, the current device, or the one around a DeviceGuard of the meta device.
  std::optional<Device> device = {};
  /// Keeps shards, their gradients and the optimizer's state in pinned host memory. Does nothing on a CPU.
  bool offload = false;
  /// In the first two backward passes and in every check_every-th one, the ranks compare the options and the
  /// step counts of the optimizers that have the model's parameters, and how often each rank changed its
  /// shards, by a small all-gather: ValueError on every rank, with the first difference. 0 means never. The
  /// model's own option counts.
  int check_every = 16;
  /// Gathers parameters and reduces gradients in other dtypes than the shards have.
  MixedPrecisionPolicy mixed_precision = {};
  /// mean, or sum: see DdpOptions::reduce.
  ReduceOp reduce = ReduceOp::mean;
};

/// What one unit has done on this rank since the last reset_report().
struct FsdpUnitReport {
  std::string name;                     ///< the path of the unit's module
  std::vector<std::string> parameters;  ///< their names, relative to the module
  std::size_t full_bytes = 0;           ///< of the full parameters
  std::size_t shard_bytes = 0;          ///< of this rank's shards, padding included
  bool reshards_after_forward = true;
  bool is_full = false;  ///< now
  std::int64_t gathers = 0, scatters = 0;
  std::int64_t backward_gathers = 0;   ///< those of `gathers` that backward began
  double gather_s = 0, scatter_s = 0;  ///< the time that the transport needed
  double exposed_s = 0;                ///< the time that computation waited for both
  // ---- the all-reduces over FsdpOptions::replicate_group ----
  std::int64_t all_reduces = 0;
  std::int64_t all_reduced_bytes = 0;  ///< of gradients, with padding and a flag of use for each
  double all_reduce_s = 0, all_reduce_exposed_s = 0;
};

struct FsdpReport {
  std::vector<FsdpUnitReport> units;  ///< in the order in which fully_shard() was called
  /// The largest number of units that were full or on the way at one time, counted as for
  /// FsdpOptions::max_full_units.
  int most_full_units = 0;
  /// A table with one line per unit.
  std::string str() const;
};

class ShardedUnit;

/// A handle to a sharded module. It may be dropped: the module keeps everything that it needs.
class FullyShard {
 public:
  /// While it exists, the parameters of a unit are full. In-place changes of the full parameters are kept:
  /// each rank copies its rows into its shard. All ranks must make the same changes. state_dict(),
  /// load_state_dict(), nn::save_model() and other functions of the library see the full parameters.
  /// Optimizer::step() and AveragedModel::use() change the shards and gather the full parameters again. to()
  /// and requires_grad_() throw ValueError. Gradients and the optimizer's state stay those of the shards.
  /// With MixedPrecisionPolicy::param_dtype, full parameters and their state_dict() have that dtype; a
  /// checkpoint of save_checkpoint() or save_sharded() has the digits of the shards.
  class Unsharded {
   public:
    explicit Unsharded(std::vector<std::shared_ptr<ShardedUnit>> units);
    ~Unsharded();
    Unsharded(Unsharded&&) noexcept = default;
    Unsharded& operator=(const Unsharded&) = delete;

   private:
    std::vector<std::shared_ptr<void>> scopes_;
  };

  explicit FullyShard(std::shared_ptr<ShardedUnit> unit) : unit_(std::move(unit)) {}

  /// While the result exists, backward passes leave their gradients on the full parameters: this rank then
  /// needs the memory of all full gradients. zero_grad() does not see these sums; discard_unreduced() drops
  /// them.
  [[nodiscard]] NoSync no_sync() const;
  /// While the result exists, backward passes reduce their gradients over FsdpOptions::group alone, and this
  /// rank keeps the sums of its shards, which are not in grad() yet. The first pass without this scope
  /// all-reduces them over replicate_group, together with its own. That needs less memory than no_sync(), and
  /// one all-reduce a step. PyTorch's set_requires_all_reduce(False). zero_grad() does not see these sums;
  /// discard_unreduced() drops them. Does nothing without a replicate_group.
  [[nodiscard]] NoSync no_all_reduce() const;
  /// Collective: gathers the parameters of this module's own unit, or also those of all units inside it. For
  /// methods other than forward, and to look at weights. Calls of the units inside need no unshard().
  [[nodiscard]] Unsharded unshard(bool units_inside = false) const;
  /// Drops the gradients that passes under no_sync() and no_all_reduce() have left.
  void discard_unreduced() const;
  /// Until a backward pass that reduces gradients has ended, units stay full once they were gathered: the
  /// calls and the passes of a step in parts, all but the last under no_sync() or no_all_reduce(), gather
  /// each unit once. Needs the memory of all full parameters. If an optimizer has stepped meanwhile, a call
  /// throws ValueError on the ranks that have elements of a changed parameter. `on` = false, or an exception
  /// in a call or a pass, ends it. The counterpart of PyTorch's set_reshard_after_backward(false).
  void keep_full(bool on = true) const;
  /// Collective: ends keep_full(), and reduces gradients of passes under no_sync() that no pass has reduced.
  void end_step() const;
  /// Collective over both groups: broadcasts the first rank's buffers. Call it before an evaluation that is
  /// divided among ranks, because forward changes the running statistics of each rank differently.
  void sync_buffers() const;

  FsdpReport report() const;
  void reset_report() const;
  /// The parameters of each unit, in the order in which fully_shard() was called.
  std::vector<std::vector<std::string>> units() const;
  ProcessGroup& process_group() const;

 private:
  std::shared_ptr<ShardedUnit> unit_;
};

/// Makes the module one unit of a sharded model. Call it on the modules inside first, such as the blocks, and
/// on the model last, on all ranks. The unit has the parameters of the module that belong to no unit inside
/// it, and those that modules of several units share: the smallest sharded module that contains all users of
/// a parameter has it, so that it is full while any of them computes.
///
/// A parameter is divided along dimension 0, each rank getting ceil(rows / ranks) of its rows; the last ranks
/// may get fewer, or none. A scalar counts as one row. The slot of the parameter then gives this rank's rows:
/// optimizers, clipping and tensor hooks see the shard, state_dict() throws outside of unshard(true), and
/// load_state_dict() takes whole tensors, the same on all ranks. In forward of the unit, the slot gives
/// the full tensor. Reading a parameter in forward of another module, or recording an operation on a shard,
/// throws with the parameter's path. A gradient is the mean over the ranks, as in DistributedDataParallel,
/// and the ranks of a parameter's shards have their rows of it.
///
/// Forward gathers a unit's parameters with one all-gather, and gathers the next unit, in the order of the
/// last forward, while this one computes. Backward does the same in reverse order, and reduces the gradients
/// of a unit with one reduce-scatter while the next unit computes. All ranks must call the same units in the
/// same order. Inside a unit, ranks may use different parameters.
///
/// A model that is built on the meta device never exists as a whole: each call gives its own unit memory and
/// initial values (nn::materialize), and keeps this rank's rows.
///
/// Collective over group and replicate_group: compares names, shapes, dtypes and options between the ranks,
/// and broadcasts the first rank's values. Throws ValueError on every rank if they differ, the module or a
/// module around it is sharded already, a parameter has replicas or a DistributedDataParallel, an option is
/// out of range, or the two groups are not a row and a column of a grid. Buffers are not divided; they keep
/// their values of each rank, as in PyTorch's FSDP2.
FullyShard fully_shard(nn::Module& module, const FsdpOptions& options);

}  // namespace tapestry::distributed
