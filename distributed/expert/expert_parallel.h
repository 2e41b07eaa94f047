#pragma once
// Expert parallelism: the ranks of an axis divide the experts of each mixture of experts. Each rank computes
// other samples, and sends each token to the ranks that have its experts.
//
//   distributed::Mesh mesh(world, {{"replicate", 2}, {"expert", 4}});
//   nn::MixtureOfExperts model(options);                         // may be on the meta device
//   distributed::expert_parallel(model, mesh["expert"]);
//   // Gradients of experts are added over their copies, and those of other parameters over all ranks.
//   const auto experts = model.experts.parameters();
//   const auto others = model.gate.parameters();                 // and of all other modules of a model
//   DistributedDataParallel<nn::MixtureOfExperts> all(
//       model, {.process_group = world, .reduce = ReduceOp::sum, .ignored_parameters = experts});
//   DistributedDataParallel<nn::MixtureOfExperts> copies(
//       model, {.process_group = mesh["replicate"].group(), .reduce = ReduceOp::sum,
//               .ignored_parameters = others, .paired_with = &all});
//   (loss_of(all(x)) / samples_of_all_ranks).backward();         // loss_of: a sum over this rank's samples
//
// The axis `expert` of a Strategy does the same for any model.
//
// Sources: Lepikhin et al., "GShard: scaling giant models with conditional computation and automatic
// sharding", 2020; without dropped tokens and with unequal parts, Gale et al., "MegaBlocks", 2022.
#include <cstdint>
#include <memory>
#include <optional>

#include "tapestry/distributed/comm/process_group.h"
#include "tapestry/distributed/common/router_bias.h"
#include "tapestry/distributed/mesh/mesh.h"
#include "tapestry/distributed/placement/convert.h"
#include "tapestry/nn/module.h"

namespace tapestry::distributed {

struct ExpertParallelOptions {
  /// Where parameters and buffers on the meta device get their memory and their initial values, one at a
  /// time. If nullopt, the current device, or the one around a DeviceGuard of the meta device.
  std::optional<Device> device = {};
};

/// A handle to a divided model. It may be dropped.
class ExpertParallel {
 public:
  struct Sent {
    std::int64_t bytes = 0, routed_bytes = 0;
    std::shared_ptr<ConversionTraffic> waits = std::make_shared<ConversionTraffic>();
  };
  explicit ExpertParallel(std::shared_ptr<Sent> sent) : sent_(std::move(sent)) {}
  /// The bytes of tokens and results that this rank has sent to other ranks since the last reset_report(),
  /// and of their gradients. It is counted when forward runs, and includes the backward of what grad mode
  /// would record. The counts, 8 bytes for each expert, are left out.
  std::int64_t bytes_sent() const { return sent_->bytes; }
  /// The bytes of the rows that this rank has routed to experts, its own included, since the last
  /// reset_report().
  std::int64_t routed_bytes() const { return sent_->routed_bytes; }
  /// How long the host has waited for tokens, results and their gradients.
  double exposed_s() const { return sent_->waits->counts().exposed_s; }
  void reset_report() const {
    sent_->bytes = sent_->routed_bytes = 0;
    sent_->waits->reset();
  }

 private:
  std::shared_ptr<Sent> sent_;
};

/// Divides the experts of each nn::MixtureOfExperts in the module among the ranks of the axis: a rank keeps
/// ceil(num_experts / ranks) experts, and the last ranks may get fewer. All other parameters are copied. The
/// parts and the copies have a nn::Layout, so that clipping, optimizers, GradScaler and checkpoints work as
/// in one process: a checkpoint has whole tensors under their names, and loads on other meshes. Initial
/// values are those of a model in one process: the first rank's whole parameters are broadcast, one at a
/// time, and each rank keeps its part.
///
/// A call of a layer is collective over the axis. The ranks may have different numbers of tokens, also none.
/// They exchange the number of tokens of each expert, then the tokens, and after the products the results;
/// backward exchanges gradients on the same ways. The host waits for a GPU once in each call. Router,
/// capacity, auxiliary loss and shared experts compute from this rank's tokens alone, as in
/// DistributedDataParallel.
///
/// Tokens of all ranks pass through an expert, so after backward its gradient is the sum over the losses of
/// all ranks. Do not add it along this axis again, and do not divide it: divide the losses before backward,
/// as a Strategy does. The gradients of the other parameters are this rank's own, and must be added along
/// this axis. A Strategy with the axis `expert` does both. Without one, wrap the model in a
/// DistributedDataParallel over all ranks and, if experts have copies, in a second one over these copies.
/// Both need DdpOptions::ignored_parameters and ReduceOp::sum. The second one needs paired_with.
///
/// Collective over the axis. Throws ValueError on every rank, before anything is changed, if the module has
/// no MixtureOfExperts, a rank would have no expert of one, its experts are divided already, or the ranks'
/// models differ.
ExpertParallel expert_parallel(nn::Module& module, const Axis& axis,
                               const ExpertParallelOptions& options = {});

}  // namespace tapestry::distributed
