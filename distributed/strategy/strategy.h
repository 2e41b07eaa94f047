#pragma once
// Strategy is a way of training as a value: one text selects how a model is divided or replicated over ranks
// or devices, and one interface trains, evaluates and saves under all of them.
//
//   using Tensors = std::vector<Tensor>;
//   distributed::Strategy strategy("replicate=4:zero=1", {.world = distributed::init_process_group()});
//   Net net;
//   strategy.wrap(net, {.forward = [&](const Tensors& in) { return Tensors{net(in[0])}; },
//                       .loss = [](const Tensors& out, const Tensors& targets) -> distributed::Loss {
//                         return {cross_entropy(out[0], targets[0]), double(targets[0].numel())};
//                       }});
//   const auto optimizer =
//       distributed::make_optimizer<optim::AdamW>(strategy, net.parameters(), {.lr = 1e-3});
//   for (std::int64_t step = 0; step < steps; ++step) {
//     optimizer->zero_grad();
//     const auto read = [&](const distributed::Part& part) {
//       return samples_of(step, strategy.share(64, part));  // this process's samples of the step's 64
//     };
//     strategy.gradients(read, 64);
//     optimizer->step();
//   }
//
// README.md beside this file lists the axes and says how to add a mode.
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tapestry/core/memory_record.h"
#include "tapestry/core/safetensors.h"
#include "tapestry/distributed/common/batch.h"
#include "tapestry/distributed/common/seeds.h"
#include "tapestry/distributed/common/tensor_plan.h"
#include "tapestry/distributed/mesh/mesh.h"
#include "tapestry/distributed/mesh/strategy_text.h"
#include "tapestry/nn/module.h"
#include "tapestry/nn/optim/grad_scaler.h"

namespace tapestry::distributed {

class Stage;
class StrategyLayer;

/// One of the parts of a step that are computed one after another.
struct Part {
  int index = 0, count = 1;
  bool last = true;  ///< the last one that this process computes in the step
};

/// A range of the samples of a step.
struct Samples {
  std::int64_t first = 0, count = 0;
};

/// What this process reads for one part of a step, or for one turn of an evaluation.
struct Batch {
  std::vector<Tensor> inputs, targets;
  /// False in an evaluation: this rank has no samples left, and the batch is there to make equal calls.
  bool counts = true;
  /// In an evaluation: ranks that divide sequences compute these whole, each for itself, and the first of
  /// them counts. The call of the model must use a cache, because attention without one takes the tokens for
  /// a part of longer sequences.
  bool whole = false;
};

/// The loss of some samples: the mean over `count` targets, or their sum. What counts as a target is up to
/// the application; strategies only add counts, and divide by them. A mean over no targets, which is NaN,
/// counts as 0.
struct Loss {
  Tensor value;
  double count = 0;
  LossKind kind = LossKind::mean;
  /// Other numbers to add up, one element each, such as how many guesses are right. They get no gradients.
  /// All samples have equally many.
  std::vector<Tensor> sums = {};
};

/// What an application says of its model, once.
struct ModelParts {
  /// The modules that become units of a sharded model, such as its blocks.
  std::vector<nn::Module*> units = {};
  /// Calls the model. It runs on each device of the process, with that device's samples.
  std::function<std::vector<Tensor>(const std::vector<Tensor>& inputs)> forward = {};
  /// The loss of the model's outputs.
  std::function<Loss(const std::vector<Tensor>& outputs, const std::vector<Tensor>& targets)> loss = {};
  /// Both in one call, for models that compute the loss themselves. Without it, `loss` of `forward`.
  std::function<Loss(const std::vector<Tensor>& inputs, const std::vector<Tensor>& targets)> forward_loss =
      {};
  /// The model as consecutive stages, one for each device. Without it, the model cannot be split. Over ranks,
  /// each rank makes all stages and keeps its own: the parameters of the others lose their memory, or never
  /// get any if the model is on the meta device.
  std::function<std::vector<Stage>(const std::vector<Device>&)> stages = {};
  /// How the ranks of the axis `tensor` divide the layers. Without rules, tensor_plan() of the model.
  TensorPlan tensor_plan = {};
  /// The dimension of all inputs and targets that is the sequence. The axis `context` divides it. Attention
  /// then sees all positions, if it is a layer that context_parallel() names. All other code sees the rows of
  /// this rank alone, and would train wrongly without an error if it sums, shifts or attends along the
  /// sequence: `x.mean(1)`, or a loss that shifts the logits itself. Shift the targets before the batch is
  /// divided.
  std::optional<int> sequence_dim = {};
  /// Sequences may have several documents, and attention calls with TokenContext::documents.
  bool has_documents = false;
};

/// This process's part of a step: the parts of all ranks and of a step add up. Of ranks that know the same
/// numbers (the stages of a pipeline, the ranks of a tensor axis), the first one has them, and the others
/// have zeros.
struct StepLoss {
  Tensor loss;               ///< of the mean over the step; one element
  std::vector<Tensor> sums;  ///< Loss::sums
};

/// The same on all ranks.
struct Evaluation {
  double sum = 0, count = 0;      ///< of Loss
  std::vector<double> sums = {};  ///< Loss::sums
  double mean() const { return sum / count; }
};

/// What one axis has sent in the last step.
struct AxisReport {
  std::string axis;
  std::int64_t bytes_sent = 0;  ///< by this process
  double exposed_s = 0;         ///< computation waited for communication; 0 if it is not measured
  std::string choice = {};      ///< an option that the axis has chosen by itself: "attention=ring"
};

/// What one member has sent to another in the last step. Collectives count as rings, in which each member
/// sends to the next.
struct Transfer {
  int from = 0, to = 0;  ///< ranks of the job, or devices of the process by their place in its list
  std::int64_t bytes = 0;
  const char* what = "";  ///< "gradients", "parameters", "activations", "tokens", "batch" or "buffers"
  std::string axis = {};
  const char* phase = "";  ///< "forward", "backward" or "update"; empty if the row does not know
};

/// The ranks that divide an optimizer's state: see ZeroOptions. Null: it is not divided.
struct OptimizerDivision {
  std::shared_ptr<ProcessGroup> group = {};
  int stage = 0;
  std::vector<nn::Parameter> parts = {};
  std::shared_ptr<ProcessGroup> parts_group = {};
};

struct StrategyOptions {
  /// The ranks of the job. Null stands for one process.
  std::shared_ptr<ProcessGroup> world = {};
  /// The devices of this process. A rank computes on the first one; axes over devices use them in this order.
  std::vector<Device> devices = {kCPU};
  /// The parts of a step: micro-batches of a pipeline, or accumulation steps.
  int parts = 1;
};

/// How an axis divides a step. distributed/planner predicts times and memory from it.
struct StepDivision {
  /// How the gradients of devices that have different samples are added.
  enum class Sum : std::uint8_t {
    none,     ///< the devices of the axis have no different samples
    buckets,  ///< in buckets during backward, as DistributedDataParallel does
    units,    ///< unit by unit during backward, into the parts of a divided model, as fully_shard does
    master    ///< after backward, on the first device; it alone updates, and broadcasts the model
  };
  Sum sum = Sum::none;
  int zero = 0;               ///< the stage of ZeroRedundancyOptimizer; 0: every device updates all it has
  std::string schedule = {};  ///< of the model's stages: a Schedule's name, or "sequential". Empty: no stages
  /// Sum::units inside stages: the devices gather a unit once in a step, and keep it until its last backward.
  /// False: they gather it for each forward and each backward.
  bool keeps_whole = false;
  /// The devices divide what layers compute, and communicate inside the layers, as under tensor_parallel,
  /// context_parallel and expert_parallel. `options` are those of the axis that change what the devices
  /// compute or send: "sequence=1", "attention=ring". Options with default values are left out.
  bool layers = false;
  std::string options = {};
  bool samples = false;  ///< each device computes samples of its own
  /// The devices have the same parameters, and add their gradients along all such axes at once. With `parts`
  /// they divide some parameters instead, whose gradients are added along the other axes alone.
  bool copies = false, parts = false;

  bool divides_batch() const { return samples || sum != Sum::none; }
  bool divides_model() const { return sum == Sum::units; }
  bool divides_optimizer() const { return divides_model() || zero > 0; }
};

/// What a text says before there is a job.
struct StrategyPlan {
  std::vector<AxisSpec> axes;
  bool over_devices = false;  ///< of one process; false: over ranks
  /// The number of ranks or devices that the sizes need. 0 if a size is what is left.
  int size = 1;
  bool splits_model = false;
  std::string about;  ///< for lists of modes
  /// True if an axis reads this option, such as "compress".
  bool reads(std::string_view option) const;
};
/// Parses and checks a strategy's text: axes, their options, and what cannot be combined. An axis without the
/// option `devices` is over the ranks of a job, and over devices if it is the only axis and `launched` is
/// false, unless its options exist in the other place only. Throws ValueError.
StrategyPlan plan_strategy(std::string_view text, bool launched);
StrategyPlan plan_strategy(std::vector<AxisSpec> axes, bool launched);
/// How each axis of a plan divides a step. Empty if the planner cannot predict it, unless `predictable` is
/// false: then what the rows of the axes say nevertheless.
std::vector<StepDivision> divisions_of(const StrategyPlan& plan, bool predictable = true);

class Strategy {
 public:
  /// Collective over the ranks of `world`. Throws ValueError if the text is wrong, or if the ranks or devices
  /// do not fit its sizes.
  Strategy(std::string_view text, const StrategyOptions& options);
  Strategy(const StrategyPlan& plan, const StrategyOptions& options);
  ~Strategy();
  Strategy(const Strategy&) = delete;
  Strategy& operator=(const Strategy&) = delete;

  // ---- who does what ----
  /// The canonical text, with the sizes.
  std::string name() const;
  /// Null if the strategy has no axes.
  const Mesh* mesh() const { return mesh_ ? &*mesh_ : nullptr; }
  /// The devices on which this process computes.
  const std::vector<Device>& devices() const { return devices_; }
  /// Which of the processes that read different samples this one is, and how many there are.
  int data_rank() const { return data_rank_; }
  int data_size() const { return data_size_; }
  /// The number of processes whose StepLoss is a part of the mean: those with different samples or positions.
  int loss_parts() const { return data_group_ ? data_group_->size() : 1; }
  /// The ranks that have different samples or positions, and compute the same part of the model, over which
  /// convert_sync_batchnorm() sums. Null if there is one, or if all are in this process.
  const std::shared_ptr<ProcessGroup>& data_group() const { return data_group_; }
  /// The samples that this process reads in a part of a step of `samples` samples. Parts and ranks get as
  /// equal numbers as possible, the first ones more.
  Samples share(std::int64_t samples, const Part& part) const;
  /// True on exactly one rank of the job.
  bool logs() const { return rank() == 0; }
  /// The model may be built on the meta device, so that no process ever has all of it.
  bool builds_in_parts() const;
  /// The number of ModelParts::stages into which the model is split; 0 if it is not split.
  int stages() const { return plan_.splits_model ? (*mesh_)["pipeline"].size() : 0; }
  /// Every call of the model is collective: all ranks must call it equally often.
  bool calls_are_collective() const;
  /// The model itself can be called, for example to generate text.
  bool can_call_model() const;
  /// The place of this process, or of another rank, along the axes that random numbers follow. What the ranks
  /// of an axis compute decides whether they follow it. For manual_seed_by_coordinate() and ShardedTraining.
  RandomPlace random_place() const { return random_place(rank()); }
  RandomPlace random_place(int rank) const;
  /// For ShardedTraining: the choices that change the bits of a run: the canonical text, the parts of a step,
  /// and the number of ranks.
  StringMap choices() const;

  // ---- training ----
  /// Moves the model to its devices, and replicates, divides or splits it. Collective. The model, and what
  /// `parts` refers to, must exist whenever a function below is called.
  void wrap(nn::Module& model, ModelParts parts);
  /// Adds the gradients of one step: those of the sum of all losses, divided by `count`, the number of
  /// targets of all ranks and parts (Loss::count). read(part) returns this process's samples: see share().
  /// With a scaler, gradients are multiplied by its scale. Collective. The first step compares `count` with
  /// the losses' counts: ValueError on all ranks if it is not their sum. A batch that is `whole` is a
  /// ValueError too. At the end, update_router_bias() moves the biases of routers by the tokens of all ranks
  /// and parts. Do not call it yourself.
  StepLoss gradients(const std::function<Batch(const Part&)>& read, double count,
                     optim::GradScaler* scaler = nullptr);
  /// Clips the norm of all gradients, over all axes, and returns it: nn::clip_grad_norm_(). Collective.
  Tensor clip_grad_norm_(double max_norm, double norm_type = 2);
  /// The ranks that divide the optimizer's state. make_optimizer() in distributed/zero reads it.
  OptimizerDivision optimizer_division() const;

  // ---- evaluation ----
  using Seen = std::function<void(const std::vector<Tensor>& outputs, const Batch& batch)>;
  /// The loss of `turns` batches of each rank, in evaluation mode and without gradients. The ranks may
  /// have different numbers of batches (Batch::counts), but the same number of turns. `seen`, if given, gets
  /// the outputs of ModelParts::forward, or of the last stage, for each batch that counts. It is called on
  /// one rank of a pipeline and of a tensor axis. Every rank of a context axis calls it, with the outputs and
  /// the batch of its own positions; if Batch::whole is set, one rank does. Calls stops(), which may be
  /// collective, after each turn; returns nothing if it returned true. Collective.
  std::optional<Evaluation> evaluate(std::int64_t turns, const std::function<Batch(std::int64_t turn)>& read,
                                     const std::function<bool()>& stops = {}, const Seen& seen = {});

  // ---- the rest ----
  /// The sums of these numbers over the ranks. Collective.
  std::vector<double> sum(std::vector<double> values) const;
  /// The whole model in host memory, on rank 0. Collective.
  nn::StateDict whole_state() const;
  /// While the result exists, the slots of a sharded model have whole tensors. Collective.
  std::shared_ptr<void> unshard() const;
  std::vector<AxisReport> report() const;
  /// What this process sent in the last step. The bytes add up to AxisReport::bytes_sent.
  std::vector<Transfer> transfers() const;
  /// Of each of devices(), the moment at which it held most since the begin or the last restart() of a record
  /// that exists since before the model was built. Without a record, since reset_peak_memory(), with all
  /// bytes as MemoryKind::other.
  std::vector<MemorySample> memory(const MemoryRecord* record = nullptr) const;

 private:
  nn::Module& model() const;
  void check_count(double count);
  Batch own_part(Batch batch) const;
  int member_at(const std::string& axis, int coordinate) const;
  int rank() const { return options_.world ? options_.world->rank() : 0; }
  int ranks() const { return options_.world ? options_.world->size() : 1; }
  const StrategyPlan plan_;
  const StrategyOptions options_;
  std::vector<Device> devices_;
  int data_rank_ = 0, data_size_ = 1;
  std::shared_ptr<ProcessGroup> data_group_;
  std::vector<std::string> copies_;  // axes over ranks along which parameters are copied, outermost first
  std::optional<Mesh> mesh_;
  std::vector<std::unique_ptr<StrategyLayer>> layers_;  // in the order of wrapping; the first one computes
  nn::Module* model_ = nullptr;
  bool balances_ = false;                      // the model has routers with biases
  std::shared_ptr<ProcessGroup> stage_group_;  // if it has: all ranks with the same layers. Null: one process
  ModelParts parts_;
  bool count_checked_ = false;
  bool adds_ = true;        // false: a rank before this one along the tensor axis has the same numbers
  bool adds_whole_ = true;  // false: one along the context axis has those of a batch that is not divided
};

}  // namespace tapestry::distributed
