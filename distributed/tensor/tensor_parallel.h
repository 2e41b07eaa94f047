#pragma once
// Tensor parallelism: the ranks of an axis divide the layers of a model. Each rank keeps and computes a part
// of each weight matrix, so that a layer fits that is too large for one device.
//
//   distributed::Mesh mesh(world, {{"shard", 2}, {"tensor", 2}});
//   nn::Llama model(config);                                   // may be on the meta device
//   const distributed::Axis tensor = mesh["tensor"];
//   distributed::tensor_parallel(model, tensor, distributed::tensor_plan(model, tensor.size()));
//   distributed::fully_shard(model, {.group = mesh["shard"].group()});   // what is left, if wanted
//   optim::AdamW optimizer(model.parameters(), {.lr = 3e-4});
//   model(ids, {.targets = next_ids}).backward();              // the same ids on all ranks of the axis
//
// Sources: Shoeybi et al., "Megatron-LM: training multi-billion parameter language models using model
// parallelism", 2019, and for sequence parallelism Korthikanti et al., "Reducing activation recomputation in
// large transformer models", 2022. The names follow PyTorch's parallelize_module.
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

#include "tapestry/distributed/common/tensor_plan.h"
#include "tapestry/distributed/mesh/mesh.h"
#include "tapestry/distributed/placement/convert.h"
#include "tapestry/nn/module.h"

namespace tapestry::distributed {

class ResidualStream;

struct TensorParallelOptions {
  /// Sequence parallelism: the residual stream is divided along the sequence. Reduce-scatters and all-gathers
  /// take the place of all-reduces, with the same bytes, and norms, dropouts and residuals need less memory
  /// and time. All modules with parameters need a style. A stage of a pipeline sends its part of the stream.
  bool sequence = false;
  /// The dimension of the residual stream that is the sequence, counted from the end. -3 for (L, N, E).
  int sequence_dim = -2;
  /// With `sequence`: Linear layers cut the stream into at most this many chunks along the sequence. The
  /// product of one chunk then runs while the next one is gathered, or while the one before it is reduced and
  /// scattered. The bytes stay the same. 0 and 1 mean whole products, which are faster on fast links, because
  /// chunks cost a copy of what products read and write. The head of a language model, the style `attention`
  /// and layers whose parameters fully_shard() gathers by themselves have whole products.
  int chunks = 0;
  /// Where parameters and buffers on the meta device get their memory and their initial values, one at a
  /// time. If nullopt, the current device, or the one around a DeviceGuard of the meta device.
  std::optional<Device> device = {};
};

/// A handle to a divided model. It may be dropped.
class TensorParallel {
 public:
  explicit TensorParallel(std::shared_ptr<ResidualStream> stream) : stream_(std::move(stream)) {}
  /// What the layers have sent on this rank since the last reset_report(), counted when it is posted:
  /// activations and their gradients, gradients of parameters of which ranks have copies, and the numbers of
  /// the loss of a divided vocabulary. It leaves out exchanges of a length, and what clipping sums.
  ConversionTraffic::Counts sent() const;
  std::int64_t bytes_sent() const { return sent().bytes(); }
  void reset_report() const;
  /// A scope around calls of modules of the model that belong together, such as those of a stage of a
  /// pipeline. Without such a scope, each divided layer exchanges the length of the sequence. A call of the
  /// whole model has a scope of its own.
  std::shared_ptr<void> call() const;

 private:
  std::shared_ptr<ResidualStream> stream_;
};

/// Divides the module among the ranks of the axis: the ranks keep their parts of the parameters (nn::Layout),
/// and the layers communicate when they are called. Gradients, clipping, optimizers, GradScaler and
/// checkpoints then work as in one process: a checkpoint has whole tensors under their names, and loads on
/// other meshes. All ranks of the axis must make equal calls with equal inputs, and have equal seeds.
///
/// A rank gets ceil(n / ranks) units of a dimension; the last ranks may get fewer. Initial values are those
/// of a model in one process: the first rank's whole parameters are broadcast, one at a time, and each rank
/// keeps its part. Parameters that another axis holds already (the stages of a pipeline) are divided further.
/// Adapters (nn::add_lora()) are divided with their layers: add them before. Call fully_shard() or
/// DistributedDataParallel afterwards. Calls of the model check placements if they are checked now
/// (PlacementCheck).
///
/// Collective over the axis. Throws ValueError on every rank, before anything is changed, if a rule matches
/// no module or one that its style cannot divide (recurrent layers are refused by name), a rank would have
/// nothing of a parameter, units do not divide, or the ranks' models, plans or options differ.
TensorParallel tensor_parallel(nn::Module& module, const Axis& axis, const TensorPlan& plan,
                               const TensorParallelOptions& options = {});

/// A plan for the layers of nn/models and nn/layers that the model contains: Llama and its family, with the
/// embedding and the head of a language model. Throws ValueError if it knows none of the model's modules, or
/// if `ranks` ranks cannot divide the heads of an attention.
TensorPlan tensor_plan(const nn::Module& model, int ranks);

}  // namespace tapestry::distributed
