#pragma once
// ZeroRedundancyOptimizer divides the state of an optimizer among the ranks that train together, and in stage
// 2 also the gradients (Rajbhandari et al., "ZeRO: memory optimizations toward training trillion parameter
// models", 2020).
//
//   auto world = distributed::init_process_group();
//   Net net;
//   distributed::DistributedDataParallel ddp(net, {.process_group = world});
//   distributed::ZeroRedundancyOptimizer<optim::AdamW> optimizer(net.parameters(), {.process_group = world,
//   .stage = 2},
//                                                                {.lr = 1e-3});
//   for (auto& [images, labels] : loader) {
//     optimizer.zero_grad();
//     cross_entropy(ddp(images), labels).backward();
//     optimizer.step();  // updates this rank's part, and gathers the parameters
//   }
#include <concepts>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tapestry/distributed/comm/process_group.h"
#include "tapestry/distributed/common/element_divided.h"
#include "tapestry/distributed/common/join.h"
#include "tapestry/nn/optim/lbfgs.h"
#include "tapestry/nn/optim/muon.h"
#include "tapestry/nn/optim/optimizer.h"

namespace tapestry::distributed {

struct ZeroOptions {
  /// The ranks that divide the state. Required. Stage 2 needs the group of the DistributedDataParallel.
  std::shared_ptr<ProcessGroup> process_group = {};
  /// 1 divides the optimizer's state. 2 divides the gradients too.
  int stage = 1;
  /// The updated parameters are gathered in buckets of this many MiB (2^20 bytes). Stage 2 uses the buckets
  /// of the DistributedDataParallel instead.
  double bucket_cap_mb = 25;
  /// Parameters of which the ranks of process_group have different parts, such as experts that
  /// expert_parallel() divides. Their state is divided by the ranks that have the same parts. Stage 2 needs a
  /// second DistributedDataParallel, over parts_group.
  std::vector<nn::Parameter> parts = {};
  /// The ranks that divide the state of `parts`: some of those of process_group.
  std::shared_ptr<ProcessGroup> parts_group = {};
};

namespace detail {

/// What ZeroBase needs of the optimizer that it divides.
class DividedOptimizer {
 public:
  virtual ~DividedOptimizer() = default;
  virtual optim::Optimizer& optimizer() = 0;
  virtual std::vector<optim::OptionRef> options_of(std::size_t group) const = 0;
  virtual void check_options(std::size_t group) const = 0;
  virtual std::vector<const char*> state_names() const = 0;
  /// Says where the part of each parameter begins in the whole parameter, in elements.
  virtual void set_offsets(std::vector<std::int64_t> offsets) = 0;
};

/// The optimizer O over this rank's parts of the parameters.
template <class O>
class PartsOptimizer final : public O, public DividedOptimizer {
 public:
  using O::O;
  optim::Optimizer& optimizer() override { return *this; }
  std::vector<optim::OptionRef> options_of(std::size_t group) const override { return O::options_of(group); }
  void check_options(std::size_t group) const override { O::check_options(group); }
  std::vector<const char*> state_names() const override { return O::state_names(); }
  void set_offsets(std::vector<std::int64_t> offsets) override { offsets_ = std::move(offsets); }

 protected:
  // An element is rounded stochastically by its place in the whole parameter.
  void update_tensors(std::size_t group, const nn::ReplicaDevice& replica_device,
                      const std::vector<typename O::Update>& updates) override {
    std::vector<typename O::Update> own = updates;
    for (typename O::Update& u : own) u.offset = offsets_.at(static_cast<std::size_t>(u.number));
    O::update_tensors(group, replica_device, own);
  }

 private:
  std::vector<std::int64_t> offsets_;
};

}  // namespace detail

/// The part of ZeroRedundancyOptimizer that does not depend on the optimizer's type. Use
/// ZeroRedundancyOptimizer.
class ZeroBase : public optim::Optimizer, public ElementDivided, public Joinable {
 public:
  using StateDict = nn::StateDict;
  ~ZeroBase() override;

  /// The name of the divided optimizer.
  const char* name() const override;
  bool supports_device_scaling() const override;
  int stage() const;
  ProcessGroup& process_group() const override;

  /// Collective: collects the state of all ranks on the rank `to`, on the CPU, for state_dict(). It is valid
  /// until the next step() or load_state_dict(). The state of ZeroOptions::parts is collected on one rank of
  /// each parts_group: the one whose number in its group is that of `to` in its own. Throws IndexError on
  /// every rank if there is no such rank.
  void consolidate_state_dict(int to = 0) override;
  /// The options and the whole state, as the divided optimizer would return them without ZeRO: it can load
  /// them, with any number of ranks or without any. Throws ValueError unless consolidate_state_dict() has
  /// collected the state on this rank since the last step(). Throws ValueError also if ranks divide a
  /// parameter, because no rank has its whole state then; a checkpoint has it.
  StateDict state_dict() const override;
  /// The options and this rank's part of the state, with a description of the division. Not collective. Only
  /// the same rank of a job with as many ranks can load it.
  StateDict local_state_dict() const override;
  /// The options and, on the rank on which consolidate_state_dict() has collected the state, the entries of
  /// state_dict(), which are copies: writing to them changes nothing. Throws ValueError unless
  /// consolidate_state_dict() was called since the last step().
  std::vector<optim::StateTensor> state_tensors(int replica = 0) const override;
  /// Restores what state_dict() or local_state_dict() returned, or the state of the divided optimizer without
  /// ZeRO. Call it on all ranks: each takes its part. It is not collective, but the next step() compares the
  /// numbers that the ranks loaded. Throws one ValueError that lists every mismatch. If it throws, nothing
  /// was loaded. In stage 2, a state that is loaded before the first backward pass fixes the order of the
  /// buckets (relearn_order then has no effect).
  void load_state_dict(const StateDict& dict) override;

  /// The elements of each parameter that this rank updates, in the order of parameters(). 0 for parameters
  /// that other ranks update, and for frozen ones.
  std::vector<std::int64_t> local_elements() const;

  const std::shared_ptr<ProcessGroup>& join_group() const override;
  std::string why_not_joinable(const JoinScope& scope) const override;
  void set_join(JoinScope* scope) override;
  void shadow(int action) override;
  void end_join(int lead) override;

 protected:
  using Groups = std::vector<std::vector<optim::Parameter>>;
  using Factory = std::function<std::unique_ptr<detail::DividedOptimizer>(Groups parts)>;
  /// `refused` is the name of an optimizer that cannot be divided, or null.
  ZeroBase(const Groups& groups, const ZeroOptions& options, const char* refused, const Factory& make);

  std::vector<optim::OptionRef> options_of(std::size_t group) const override;
  void check_options(std::size_t group) const override;
  std::vector<const char*> state_names() const override { return {}; }
  void step_all() override;
  const detail::DividedOptimizer& divided() const;

 private:
  struct State;
  StateDict take_parts(const StateDict& dict) const;
  void follow_lead(Tensor& loss_scale, Tensor& found_inf);
  std::unique_ptr<State> state_;
};

/// Divides the state of the optimizer O among ranks. Every rank has all parameters. The elements of the
/// parameters are divided evenly, without regard to the borders of tensors: each rank updates its contiguous
/// chunk of each bucket with O's fused kernels, and the updated chunks are gathered, bucket by bucket, while
/// the next bucket is updated. step() returns when the parameters are complete.
///
/// Bytes per parameter in f32, with AdamW and N ranks:
///
/// | | parameters | gradients | state | sum |
/// |---|---|---|---|---|
/// | without ZeRO | 4 | 4 | 8 | 16 |
/// | stage 1 | 4 | 4 | 8/N | 8 + 8/N |
/// | stage 2 | 4 | 4/N | 8/N | 4 + 12/N |
///
/// f16 and bf16 parameters, and their gradients, take 2 bytes instead of 4, and with LowPrecision::master the
/// state takes 12/N bytes, because each rank has the f32 masters of its part.
///
/// At most two buckets are in memory besides, in stage 2 a few during backward. Weights are equal bit for bit
/// to those of O without ZeRO, in both stages, also if they are rounded stochastically.
///
/// Stage 1 reads grad() of each parameter, which must be equal on all ranks. DistributedDataParallel makes it
/// so, and any other average will do.
///
/// Stage 2 needs a DistributedDataParallel around the model, and all of its trained parameters. Its buckets
/// are reduce-scattered instead of all-reduced, and the memory of a bucket exists only from its first
/// gradient until its reduction is done. After backward, grad() of a parameter is defined but has no
/// elements: each rank has its part of the mean, and reading grad() throws ValueError with the parameter's
/// name. zero_grad() clears it. nn::clip_grad_norm_ and clip_grad_value_ work: each rank computes the norm of
/// its parts, and the norms are combined over the ranks. That norm is equal on all ranks, but its last bits
/// differ from those of whole gradients. A pass under no_sync() keeps whole local gradients, 4 bytes per
/// parameter, until the next pass averages them. Passes that average add to the part, so sums over several
/// such passes are rounded in another order than without ZeRO. A communication hook works as without ZeRO,
/// and reduces whole buckets.
///
/// The ranks compare their options, grad_scale and gradients before each step on the CPU, and before the
/// first one on other devices.
template <std::derived_from<optim::Optimizer> O>
class ZeroRedundancyOptimizer final : public ZeroBase {
 public:
  using Options = typename O::Options;
  using Group = optim::ParamGroup<Options>;

  /// Collective. `options` are those of O, PyTorch's `defaults`. Throws ValueError on every rank if the
  /// ranks' parameters or options differ; a parameter is undefined, given twice, computed, sharded, or not
  /// floating-point; no parameter requires gradients; or O needs whole tensors (Muon, LBFGS). In stage 2 also
  /// unless one DistributedDataParallel of the same group trains exactly the parameters that require
  /// gradients. Parameters that do not require gradients now are never updated.
  ZeroRedundancyOptimizer(std::vector<optim::Parameter> params, const ZeroOptions& zero,
                          const Options& options = {})
      : ZeroRedundancyOptimizer({Group{std::move(params), options}}, zero) {}
  ZeroRedundancyOptimizer(std::vector<Group> groups, const ZeroOptions& zero)
      : ZeroBase(parameters_of(groups), zero, kRefused,
                 [&](Groups parts) { return make(groups, std::move(parts)); }) {}

  const Options& options(std::size_t group = 0) const {
    return dynamic_cast<const detail::PartsOptimizer<O>&>(divided()).options(group);
  }

 private:
  // Muon and LBFGS compute with whole matrices and with all parameters.
  static constexpr const char* kRefused = std::derived_from<O, optim::Muon>    ? "Muon"
                                          : std::derived_from<O, optim::LBFGS> ? "LBFGS"
                                                                               : nullptr;

  static Groups parameters_of(const std::vector<Group>& groups) {
    Groups all;
    for (const Group& g : groups) all.push_back(g.params);
    return all;
  }
  static std::unique_ptr<detail::DividedOptimizer> make(const std::vector<Group>& groups, Groups parts) {
    if constexpr (kRefused == nullptr) {
      std::vector<Group> own;
      for (std::size_t g = 0; g < groups.size(); ++g) own.push_back({std::move(parts[g]), groups[g].options});
      return std::make_unique<detail::PartsOptimizer<O>>(std::move(own));
    } else {
      return nullptr;  // not called: ZeroBase has thrown
    }
  }
};

}  // namespace tapestry::distributed
