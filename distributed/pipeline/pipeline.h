#pragma once
// Pipeline: a model cut into stages, one after another, each on its own device. A batch is cut into
// micro-batches, and while one is in a stage the next is in the stage before.
//
//   distributed::Pipeline pipeline({{part1, "cpu:0"}, {part2, "cpu:1"}}, {.micro_batches = 8});
//   optim::SGD optimizer(pipeline.parameters(), {.lr = 0.1});
//   for (auto& [images, labels] : loader) {
//     optimizer.zero_grad();
//     Tensor loss = pipeline.forward_backward(images, labels, [](const Tensor& scores, const Tensor& y) {
//       return cross_entropy(scores, y);  // of one micro-batch, on the last stage's device
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
  /// Without it a batch to train on that micro_batches does not divide is an error. With it micro-batches are
  /// as even as can be, and there are fewer of them where a batch has fewer samples.
  bool uneven = false;
  /// Stages keep only their inputs of a micro-batch, and compute it forward again in its backward
  /// (autograd/checkpoint.h): about a third more time, and the activations of one micro-batch at once.
  bool checkpoint = false;
  /// The longest that a stage waits for another, in seconds. Over ranks it is the group's timeout.
  int timeout_s = 1800;
  /// Over ranks: the names of each parameter that stages of several ranks have, as one list a parameter:
  ///   .tied = {{"embedding.weight", "head.weight"}}
  /// or one name, where it has the same on all of them. In one process a parameter is tied by assigning it.
  std::vector<std::vector<std::string>> tied = {};
};

/// Trains and evaluates a model in stages. Modules stay the user's, who trains, saves and evaluates them as
/// ever; here they move to their stages' devices. Optimizers and clipping take parameters on several devices.
///
/// Gradients are those of the unsplit model, of the mean loss over the batch, if each sample's loss depends
/// on that sample alone. What looks at a whole batch looks at a micro-batch here: BatchNorm normalises each
/// by its own statistics and updates the running ones once for each of them. Dropout draws a mask a
/// micro-batch; each stage draws numbers of its own, which follow from the generator of the first one's
/// device and the number of the stage, not from schedule or placement.
///
/// A parameter of several stages (tied weights) lies on the device of the first of them; those on other
/// devices compute with a copy, which follows the first, and their gradients are added to its. Hooks on it
/// see the first's part alone. A buffer of stages on several devices is an error. Stages of several ranks
/// have copies that are trained alike: PipelineOptions::tied says which, forward_backward() sums what it adds
/// to their gradients, and the first rank's values are everybody's from the beginning, and after
/// load_state_dict(). One that no rank uses in a call gets no gradient, as in one process. Freeze one on all
/// its ranks or none (anything else is an error on all ranks), and give their optimizers the same options.
///
/// All compute of a device happens on its worker; of stages that share one, one at a time. A call returns
/// when all is done; the first exception is then rethrown with stage, micro-batch and device in the text, and
/// everything can be used as before, but gradients may hold a part of the batch: zero_grad(). Calls of
/// pipelines that share devices come from one thread at a time.
///
/// Over the ranks of a process group each rank computes one stage, on the thread that calls, and every call
/// is one of all ranks. Inputs are the first rank's and targets the last one's; those that others pass are
/// not looked at. All ranks return the loss; outputs are the last rank's, and undefined on the others. Each
/// rank steps the parameters of its own stage. clip_grad_norm_(), whole_state_dict(), load_state_dict() and
/// report() are calls of all ranks too. A batch that one rank cannot use is an error on all of them,
/// after which they can go on. What fails later (a stage throws, a rank ends) ends the group, as under DDP:
/// in this call or the next every rank throws what happened, with stage and rank, within the group's timeout.
/// Inside data parallelism, with a group for each line of stages and one for each stage's replicas, average
/// grad() over the latter after forward_backward(). Up to 32 tensors go from a rank to the next.
class Pipeline {
 public:
  using Options = PipelineOptions;
  /// What the last stage computes of one micro-batch: the mean loss over it.
  using LossFunction =
      std::function<Tensor(const std::vector<Tensor>& outputs, const std::vector<Tensor>& targets)>;

  /// ValueError without stages or micro-batches, and for stages that share what they cannot; DeviceError for
  /// a device that does not exist.
  Pipeline(std::initializer_list<Stage> stages, const Options& options = {})
      : Pipeline(std::vector<Stage>(stages), options) {}
  explicit Pipeline(std::vector<Stage> stages, const Options& options = {});
  /// Over the ranks of `group`: rank i computes stage i, which is the one that it passes. ValueError on all
  /// ranks if their options differ.
  ///   Pipeline pipeline(world, {part, device}, {.micro_batches = 8});
  Pipeline(std::shared_ptr<ProcessGroup> group, Stage stage, const Options& options = {});
  ~Pipeline();
  Pipeline(Pipeline&&) noexcept;
  Pipeline& operator=(Pipeline&&) noexcept;

  /// Runs the batch forward and backward, micro-batch by micro-batch in the order of the schedule, adds to
  /// grad() of all parameters (and of inputs that need gradients), and returns the mean loss, on the last
  /// stage's device and not recorded. Inputs and targets are anything that visit_tensors knows, split along
  /// the first dimension; Whole{} and tensors without dimensions go to every micro-batch.
  /// loss_fn(outputs..., targets) or loss_fn(outputs..., parts of targets...) gets what the last stage
  /// returned as a stage would, and targets as they were given, of one micro-batch.
  template <class Inputs, class Targets, class F>
  Tensor forward_backward(const Inputs& inputs, const Targets& targets, const F& loss_fn) {
    return run(tensors_in(inputs), tensors_in(targets),
               [&](const std::vector<Tensor>& outputs, const std::vector<Tensor>& mine) {
                 Targets part = targets;
                 put_tensors(part, mine);
                 Tensor loss;
                 call_loss(loss_fn, outputs, part, [&](const Tensor& result) { loss = result; });
                 return loss;
               });
  }

  /// Forward only, without recording: what the last stage returns for inputs..., gathered on its device.
  /// Batches of any size. ValueError if the stage returns several tensors.
  template <class... Inputs>
  Tensor operator()(const Inputs&... inputs) {
    return the_only(outputs(inputs...));
  }
  /// The same for a last stage that returns several tensors. Those without dimensions become a vector with
  /// one element a micro-batch.
  template <class... Inputs>
  std::vector<Tensor> outputs(const Inputs&... inputs) {
    return evaluate(tensors_in(std::tie(inputs...)));
  }

  /// Of all stages, each slot once.
  std::vector<nn::Parameter> parameters() const;
  /// Parameters and persistent buffers of all stages, by the names that they have in the unsplit model
  /// (Stage::named), which can load them; they share the elements. Over ranks: of this rank's stage.
  /// ValueError if two tensors have one name.
  nn::StateDict state_dict() const;
  /// Over ranks: that of all stages, on rank 0, in the host's memory; empty on the others. To save the model:
  ///   const auto whole = pipeline.whole_state_dict();
  ///   if (world->rank() == 0) save_safetensors("model.safetensors", whole);
  nn::StateDict whole_state_dict() const;
  /// Takes what belongs to the stages out of a dict of the unsplit model, or of what state_dict() returned,
  /// as nn::Module::load_state_dict does. Over ranks each passes one of either; what is wrong on one rank is
  /// an error on all, and then nothing was loaded anywhere.
  nn::LoadResult load_state_dict(const nn::StateDict& dict, bool strict = true);
  /// nn::clip_grad_norm_ of all stages' gradients together.
  Tensor clip_grad_norm_(double max_norm, double norm_type = 2, bool error_if_nonfinite = false);
  /// Training or evaluation, for all stages.
  void train(bool on = true);
  void eval() { train(false); }
  /// Of the last call. Waits for GPUs.
  PipelineReport report() const;
  const std::vector<Stage>& stages() const { return stages_; }
  const Options& options() const { return options_; }

 private:
  template <class F, class Targets, class Then>
  static void call_loss(const F& loss_fn, const std::vector<Tensor>& outputs, const Targets& targets,
                        const Then& then) {
    using Fn = std::decay_t<F>;
    if constexpr (structure::is_a<Targets, std::tuple> && !structure::TensorCall<Fn, Targets>::is_possible)
      std::apply(
          [&]<class... T>(const T&... parts) {
            structure::TensorCall<Fn, T...>::run(loss_fn, outputs, parts..., then);
          },
          targets);
    else structure::TensorCall<Fn, Targets>::run(loss_fn, outputs, targets, then);
  }
  Tensor run(const TensorList& inputs, const TensorList& targets, const LossFunction& loss);
  std::vector<Tensor> evaluate(const TensorList& inputs);
  static Tensor the_only(std::vector<Tensor> outputs);

  std::vector<Stage> stages_;
  Options options_;
  std::unique_ptr<PipelineRunner> runner_;
};

}  // namespace tapestry::distributed
