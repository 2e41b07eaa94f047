#pragma once
// Pipeline runs a model that is split into consecutive stages, each on its own device. A batch is split into
// micro-batches, so that stages work on different micro-batches at the same time.
//
//   distributed::Pipeline pipeline({{part1, "cpu:0"}, {part2, "cpu:1"}}, {.micro_batches = 8});
//   optim::SGD optimizer(pipeline.parameters(), {.lr = 0.1});
//   for (auto& [images, labels] : loader) {
//     optimizer.zero_grad();
//     Tensor loss = pipeline.forward_backward(images, labels, [](const Tensor& scores, const Tensor& y) {
//       return cross_entropy(scores, y);  // one micro-batch, on the last stage's device
//     });
//     optimizer.step();
//   }
//   Tensor scores = pipeline(images);  // forward only
#include <functional>
#include <initializer_list>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "tapestry/distributed/pipeline/report.h"
#include "tapestry/distributed/pipeline/schedule.h"
#include "tapestry/distributed/pipeline/stage.h"

namespace tapestry::distributed {

class PipelineRunner;
class ProcessGroup;

struct PipelineOptions {
  Schedule schedule = Schedule::one_f_one_b;
  int micro_batches = 1;
  /// If false, training throws ValueError for a batch that micro_batches does not divide. If true,
  /// micro-batch sizes differ by at most one, and a batch with fewer samples has fewer micro-batches.
  bool uneven = false;
  /// Activation checkpointing (autograd/checkpoint.h): stages keep only the inputs of a micro-batch and
  /// repeat its forward in backward. It takes about a third more time, and a stage holds the activations of
  /// one micro-batch at a time.
  bool checkpoint = false;
  /// Over ranks: forward_backward() throws ValueError on all ranks if the optimizers of the stages have taken
  /// different numbers of steps since the last call. Switch it off if some stages are to be stepped less
  /// often than others.
  bool check_steps = true;
  /// What the loss function returns for a micro-batch.
  LossKind loss = LossKind::mean;
  /// The longest time, in seconds, that a stage waits for another in one process. Over ranks, the group's
  /// timeout applies instead.
  int timeout_s = 1800;
  /// Over ranks: the parameters that stages of several ranks share. Each list has the names of one parameter:
  ///   .tied = {{"embedding.weight", "head.weight"}}
  /// If the parameter has the same name on all ranks, the list has one name. In one process, tie parameters
  /// by assigning one to the other instead.
  std::vector<std::vector<std::string>> tied = {};
};

/// Trains and evaluates a model in stages. The constructor moves each stage's modules to its device.
/// Otherwise modules stay the user's, who trains, saves and evaluates them as usual. Optimizers and gradient
/// clipping accept parameters on several devices.
///
/// The gradients equal those of the unsplit model for the mean loss over the batch, if each sample's loss
/// depends on that sample alone. Layers that compute over a batch compute over a micro-batch here: BatchNorm
/// normalizes each micro-batch by its own statistics and updates the running statistics once per micro-batch.
/// Dropout draws one mask per micro-batch. The random numbers of a stage depend on the generator of the first
/// stage's device and on the number of the stage, but not on the schedule or the devices.
///
/// Tied weights in one process: a parameter that several stages use is on the device of the first of them.
/// Stages on other devices compute with a copy that is updated before each call, and their gradients are
/// added to the first. Hooks on the parameter see only the first stage's part of the gradient. Buffers cannot
/// be shared between devices (ValueError).
///
/// Tied weights over ranks: each rank has a copy; PipelineOptions::tied lists them. The constructor and
/// load_state_dict() broadcast the first rank's values, and forward_backward() sums the gradients of the pass
/// over the ranks. If no rank uses a tied weight in a call, its gradient does not change, as in one process.
/// Freeze a tied weight on all its ranks or on none (ValueError on all ranks otherwise), and give their
/// optimizers the same options.
///
/// All computations of a device run on its worker thread, one stage at a time. A call returns when all
/// workers have finished. It then rethrows the first exception, with stage, micro-batch and device in the
/// text. Everything remains usable, but gradients may contain a part of the batch, so call zero_grad(). Call
/// pipelines that share devices from one thread at a time.
///
/// Over a process group each rank computes one stage, on the calling thread, and every call is collective,
/// including clip_grad_norm_(), whole_state_dict(), load_state_dict() and report(). Only the first rank's
/// inputs and the last rank's targets are used. All ranks return the loss. Only the last rank returns
/// outputs; they are undefined on the others. Each rank steps the parameters of its own stage. At most 32
/// tensors can be sent from one rank to the next.
///
/// If a rank cannot use its part of a batch, all ranks throw and the group stays usable. A later failure (a
/// stage throws, a rank exits) aborts the group, as under DDP: in this call or the next, every rank throws an
/// error with the stage and the rank, within the group's timeout.
///
/// To combine pipelines with data parallelism, create one group per pipeline and one group per stage over its
/// replicas, and average grad() over the latter after forward_backward().
class Pipeline {
 public:
  using Options = PipelineOptions;
  /// Returns the loss of one micro-batch: see PipelineOptions::loss. It runs on the last stage's device.
  using LossFunction =
      std::function<Tensor(const std::vector<Tensor>& outputs, const std::vector<Tensor>& targets)>;

  /// Throws ValueError if there are no stages or micro-batches, or if stages on different devices share a
  /// buffer. Throws DeviceError if a device does not exist.
  Pipeline(std::initializer_list<Stage> stages, const Options& options = {})
      : Pipeline(std::vector<Stage>(stages), options) {}
  explicit Pipeline(std::vector<Stage> stages, const Options& options = {});
  /// Collective over the ranks of `group`: rank i passes and computes stage i. Throws ValueError on all ranks
  /// if their options differ.
  ///   Pipeline pipeline(world, {part, device}, {.micro_batches = 8});
  Pipeline(std::shared_ptr<ProcessGroup> group, Stage stage, const Options& options = {});
  ~Pipeline();
  Pipeline(Pipeline&&) noexcept;
  Pipeline& operator=(Pipeline&&) noexcept;

  /// Runs the micro-batches forward and backward in the order of the schedule. Adds to grad() of all
  /// parameters, and of inputs that require gradients. Returns the mean loss, a tensor without dimensions on
  /// the last stage's device that is not recorded. Throws ValueError if a stage's function, or loss_fn, would
  /// give a gradient to a parameter that no module of the stage has: parameters() lacks it, so no optimizer
  /// would step it. Leaves that the stage itself creates during the call are allowed.
  ///
  /// Inputs and targets are anything that visit_tensors() looks into, and are split along the first
  /// dimension. Whole{} and tensors without dimensions go to every micro-batch unsplit. loss_fn(outputs...,
  /// targets) is called once per micro-batch. It takes the last stage's outputs as a stage would, followed by
  /// the micro-batch's targets. If `targets` is a tuple, loss_fn may take its elements as separate arguments.
  template <class Inputs, class Targets, class F>
  Tensor forward_backward(const Inputs& inputs, const Targets& targets, const F& loss_fn) {
    return run(tensors_in(inputs), tensors_in(targets),
               [&](const std::vector<Tensor>& outputs, const std::vector<Tensor>& mine) {
                 const auto part = with_tensors("Pipeline", targets, mine);
                 Tensor loss;
                 call_loss(loss_fn, outputs, part, [&](const Tensor& result) { loss = result; });
                 return loss;
               });
  }

  /// Runs forward only, without recording, and returns the last stage's output for the whole batch, on its
  /// device. The batch may have any size. Throws ValueError if the last stage returns several tensors.
  template <class... Inputs>
  Tensor operator()(const Inputs&... inputs) {
    return the_only(outputs(inputs...));
  }
  /// Like operator(), but for a last stage that returns several tensors. Outputs without dimensions become a
  /// vector with one element per micro-batch.
  template <class... Inputs>
  std::vector<Tensor> outputs(const Inputs&... inputs) {
    return evaluate(tensors_in(std::tie(inputs...)));
  }

  /// Returns the parameters of all stages, each slot once. Over ranks, it returns only those of this rank's
  /// stage.
  std::vector<nn::Parameter> parameters() const;
  /// Returns the parameters and persistent buffers of all stages with their names in the unsplit model
  /// (Stage::named), so that the unsplit model can load them. Over ranks, it returns only those of this
  /// rank's stage. The tensors share memory with the modules. Throws ValueError if two tensors have the same
  /// name.
  nn::StateDict state_dict() const;
  /// Over ranks, collective: returns the state of all stages on rank 0, in host memory, and an empty dict on
  /// other ranks. In one process it equals state_dict(). To save the model:
  ///   const auto whole = pipeline.whole_state_dict();
  ///   if (world->rank() == 0) save_safetensors("model.safetensors", whole);
  nn::StateDict whole_state_dict() const;
  /// Loads a state dict of the unsplit model, or one that state_dict() returned, as
  /// nn::Module::load_state_dict does. Over ranks, collective: each rank may pass either. If the dict of one
  /// rank is wrong, all ranks throw and no rank loads anything.
  nn::LoadResult load_state_dict(const nn::StateDict& dict, bool strict = true);
  /// Clips the norm of all stages' gradients together, as nn::clip_grad_norm_() does, and returns it.
  Tensor clip_grad_norm_(double max_norm, double norm_type = 2, bool error_if_nonfinite = false);
  /// Switches all stages to training or evaluation.
  void train(bool on = true);
  void eval() { train(false); }
  /// The times of the last call. Synchronizes with GPUs.
  PipelineReport report() const;
  const std::vector<Stage>& stages() const { return stages_; }
  const Options& options() const { return options_; }

 private:
  template <class F, class Targets, class Then>
  static void call_loss(const F& loss_fn, const std::vector<Tensor>& outputs, const Targets& targets,
                        const Then& then) {
    using Fn = std::decay_t<F>;
    if constexpr (structure::is_a<Targets, std::tuple> && !tensor_call::TensorCall<Fn, Targets>::is_possible)
      std::apply(
          [&]<class... T>(const T&... parts) {
            tensor_call::TensorCall<Fn, T...>::run(loss_fn, outputs, parts..., then);
          },
          targets);
    else tensor_call::TensorCall<Fn, Targets>::run(loss_fn, outputs, targets, then);
  }
  Tensor run(const TensorList& inputs, const TensorList& targets, const LossFunction& loss);
  std::vector<Tensor> evaluate(const TensorList& inputs);
  static Tensor the_only(std::vector<Tensor> outputs);

  std::vector<Stage> stages_;
  Options options_;
  std::unique_ptr<PipelineRunner> runner_;
};

}  // namespace tapestry::distributed
