#pragma once
// A cost model for distributed training. It measures the blocks of a model on one device and the links
// between devices, then predicts the step time and the peak memory of each way to distribute the training:
//
//   const planner::Model model{make_blocks, inputs, targets, loss};
//   const planner::TrainingSetup setup{.batch_size = 64, .devices = 2};
//   const planner::Profile profile = planner::measure_profile(model, setup);
//   const planner::Link link = planner::measure_link(model, setup);
//   const auto here = planner::predict(plan_strategy("replicate=2:devices", false), profile, link, setup);
//   const auto elsewhere = planner::simulate_devices(plan_strategy("ddp", true), profile, link, setup, 8);
//
// docs/reference/prediction.md explains the formulas and how accurate they are.
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tapestry/core/device.h"
#include "tapestry/core/tensor.h"
#include "tapestry/core/timeline.h"
#include "tapestry/distributed/comm/process_group.h"
#include "tapestry/distributed/planner/profile.h"
#include "tapestry/distributed/strategy/strategy.h"
#include "tapestry/nn/module.h"
#include "tapestry/nn/optim/optimizer.h"

namespace tapestry::distributed::planner {

/// One step of a sequential model. `module` maps one tensor to one tensor, and has parameters.
struct Block {
  std::string name;
  std::shared_ptr<nn::Module> module;
};

/// A model as a chain of blocks, with the batch, the loss and the optimizer that it is trained with.
struct Model {
  /// Returns a new copy of the blocks on the CPU. It is called once per device.
  std::function<std::vector<Block>()> make_blocks;
  Tensor inputs, targets;  ///< the global batch on the CPU, (batch, ...) each
  /// Maps the output of the last block and the targets to a scalar. It is called from the devices' workers.
  std::function<Tensor(const Tensor& output, const Tensor& targets)> loss;
  double lr = 0.01;  ///< of SGD, if there is no make_optimizer
  /// Returns the optimizer of these parameters. If it is empty, the optimizer is SGD without momentum.
  std::function<std::unique_ptr<optim::Optimizer>(std::vector<nn::Parameter>)> make_optimizer = {};
  /// How the devices of the axis `tensor` divide the blocks, which are the children "0", "1", ... of one
  /// module. Without rules, tensor_plan() of this module.
  TensorPlan tensor_plan = {};
  /// The dimension of inputs and targets that the axis `context` divides.
  std::optional<int> sequence_dim = {};
};

/// How the model is distributed.
struct TrainingSetup {
  std::int64_t batch_size = 64;  ///< the global batch: samples per step over all devices
  int devices = 2;
  DeviceType device_type = DeviceType::cpu;
  int micro_batches = 4;  ///< per step of a pipeline
  /// The sizes of buckets of gradients, as DdpOptions has them, for predictions.
  std::int64_t first_bucket_bytes = 1 << 20, bucket_cap_bytes = 25 << 20;
  /// The number of consecutive blocks per stage, for the modes that split the model. See balanced_split.
  std::vector<int> split = {};
  /// Over ranks: how many are on one host; 0 if all are. As in a Mesh, inner axes are on one host as far as
  /// possible. An axis whose devices are on several hosts has the costs of Link::cross, and the devices of a
  /// host that communicate at the same time share its links.
  int devices_per_host = 0;
  int links_per_host = 1;  ///< the links to other hosts that a host's devices share, such as network cards
};

/// The devices of a setup: cpu:0, cpu:1, ... or cuda:0, cuda:1, ...
std::vector<Device> devices_of(const TrainingSetup& setup);

// ---- measuring ----

struct MeasureOptions {
  int warmup = 2;
  /// The number of passes with the whole batch, of which the median counts. Smaller batches are measured with
  /// more passes, for the same total time.
  int passes = 7;
  /// Further numbers of devices for which simulate_devices() will be called. The batch per device of each is
  /// measured too.
  std::vector<int> simulated_devices = {};
  /// The axes that divide layers for which the model is measured too, as texts that layers_of() returns:
  /// "tensor=2:sequence=1", "context=2,tensor=2". Only these can be predicted. One rank is measured: the one
  /// with the largest parts and the most work. Its group has no peers, so its collectives are counted and
  /// take no time. With experts, other ranks are assumed to send this rank as many tokens as it sends to
  /// them, so that it computes as many rows as its own tokens have. The bytes of tokens are those of a router
  /// that uses all experts equally.
  std::vector<std::string> layers = {};
};

/// Measures the model block by block on the first device. It runs on the device's worker, so with that
/// device's part of the threads. If the setup has several devices, it also measures contention: all devices
/// train at once, each with its part of the batch. Throws ValueError if the model has no blocks, a block has
/// no parameters, the batch has not setup.batch_size samples, or an axis of MeasureOptions::layers divides no
/// layers. Throws what tensor_parallel(), context_parallel() and expert_parallel() throw if the layers cannot
/// be divided.
Profile measure_profile(const Model& model, const TrainingSetup& setup, const MeasureOptions& options = {});

/// Measures communication between the devices of this process: copies from the first device to the second,
/// and all-reduces over all of them. `Link::ranks` is not measured. All costs are 0 if there is one device.
Link measure_link(const Model& model, const TrainingSetup& setup, const MeasureOptions& options = {});

/// Measures all-reduces between processes, for `Link::ranks`. Collective: every rank calls it with the device
/// on which it computes. Only the result on rank 0 is meaningful.
AllReduce measure_all_reduce(ProcessGroup& group, const Model& model, const TrainingSetup& setup,
                             Device device, const MeasureOptions& options = {});

// ---- predicting ----

/// Splits items with these costs into `parts` consecutive parts such that the largest sum of costs of a part
/// is minimal. Returns the number of items in each part. Every part has at least one item. If several splits
/// are optimal, the first parts get the fewest items. Throws ValueError if there are fewer items than parts
/// or if a cost is negative or not finite.
std::vector<int> balanced_split(const std::vector<double>& costs, int parts);
/// A split of the profiled blocks into `stages`, balanced by the time of a micro-batch; 0 stands for
/// setup.devices.
std::vector<int> balanced_split(const Profile& profile, const TrainingSetup& setup, int stages = 0);

/// The parts of the time of a step, in seconds. They are means over the devices and add up to the step time.
struct StepBreakdown {
  double forward_s = 0, backward_s = 0;
  double exposed_comm_s = 0;  ///< communicating, or waiting for communication, without computing
  double update_s = 0;        ///< the optimizer, and everything that is in no other item
  double idle_s = 0;
};

/// The memory of one device at its peak, in bytes.
struct MemoryItems {
  double parameters = 0, gradients = 0, optimizer = 0;
  double activations = 0;  ///< tensors that forward saves for backward
  double buckets = 0;      ///< all-reduce buckets; `gradients` is then 0, because gradients are views of them
  double data = 0;         ///< the batch, gathered outputs, and copies of either
  double workspace = 0;    ///< temporary memory of the operation that runs at the peak
  /// (name, bytes) pairs in the order of declaration.
  std::vector<std::pair<std::string, double>> items() const;
  double total() const {
    return parameters + gradients + optimizer + activations + buckets + data + workspace;
  }
};

/// The text of those axes that divide layers, for a plan on this number of devices, with the options that
/// change what they send: "context=2:attention=ring,tensor=2". Empty if there are none. With `simulated`, for
/// the plan as simulate_devices() widens it.
std::string layers_of(const StrategyPlan& plan, int devices, bool simulated = false);

/// What an axis costs in a step. Gradients that are added along several axes at once count for a joined axis,
/// with a name such as "replicate_context".
struct AxisCost {
  std::string axis;
  int size = 1;
  double bytes_sent = 0;  ///< by all devices together
  double exposed_s = 0;   ///< its part of StepBreakdown::exposed_comm_s
};

/// What the devices of a row do in a part of a predicted step, in seconds since its begin. As in a Timeline,
/// a span may lie within another one, such as a wait within a forward; then the inner one counts.
struct PredictedSpan {
  int row = 0;          ///< see Prediction::rows
  bool beside = false;  ///< a collective that runs beside what the devices do
  Activity activity = Activity::other;
  /// "forward 3" (of micro-batch 3), "wait for bucket 0", "bucket 0", "blocks.1 all_gather", "update"
  std::string name;
  double begin_s = 0, end_s = 0;
  SpanSubject subject = {};  ///< SpanSubject::module is the name of a block; bytes are rounded down
};

/// What a device holds at most from a moment of a predicted step until the next one.
struct PredictedMemory {
  double begin_s = 0;
  MemoryItems items;
};

struct Prediction {
  std::string mode;  ///< the plan's text
  int devices = 1;
  bool simulated = false;  ///< true if made by simulate_devices
  double step_s = 0;       ///< the sum of the breakdown
  StepBreakdown breakdown;
  double bubble_s = 0;         ///< of a pipeline: idle time that messages in no time would leave
  std::vector<AxisCost> axes;  ///< from the outermost
  /// Per device or rank. Ranks are numbered along the axes, the innermost fastest.
  std::vector<MemoryItems> memory;
  /// The simulated step. One row stands for consecutive devices that do the same work, such as the replicas
  /// of a stage, and shows the device with the most samples. Every row stands for equally many devices. A
  /// message between stages has no span: a stage that waits for one is idle.
  std::vector<PredictedSpan> timeline;
  int rows = 1;
  /// The memory of memory[memory_device] over the step. This is the device that needs most of those that
  /// `timeline` shows. The blocks of a forward or a backward share its span in proportion to the times that
  /// they take alone. The largest sample is the peak.
  std::vector<PredictedMemory> memory_over_time;
  int memory_device = 0;

  /// The memory of the device that needs most.
  const MemoryItems& largest() const;
};

/// Predicts a step of a plan on setup.devices devices, whose number is the product of the sizes; an axis of
/// size -1 takes what the others leave. The result depends on the arguments only, so a profile that was
/// measured on another machine can be used. Each axis adds its part, as its row describes it (StepDivision),
/// from the innermost to the outermost. Returns nullopt if a row has no StepDivision, for divided layers that
/// the profile does not have (Profile::divided), or for axes that do not combine. Stages over ranks,
/// replicas, divided models and divided layers combine in this order, each along one axis at most, but layers
/// along several. Axes that divide parameters of copies (`expert`) do not combine with ZeRO. A plan that
/// splits the model needs setup.split. Throws ValueError if the profile has no blocks, the split does not fit
/// the model, the sizes do not fit the devices, or there are fewer samples than devices that divide the
/// batch, or than micro-batches.
std::optional<Prediction> predict(const StrategyPlan& plan, const Profile& profile, const Link& link,
                                  const TrainingSetup& setup);

/// What a device sends to another one in a predicted step. Devices are numbered as Prediction::memory is.
/// Collectives count as rings, in which each device sends to the next one along the axis.
struct PredictedTraffic {
  int from = 0, to = 0;
  double bytes = 0;
  std::string axis, kind;  ///< "shard", "parameters"; kinds as in Transfer::what
  std::string phase = {};  ///< "forward", "backward" or "update"; empty if it is not known
};
/// The traffic of what predict() predicts of these arguments, and throws what it throws. The bytes along an
/// axis add up to AxisCost::bytes_sent. Empty if there is no prediction.
std::vector<PredictedTraffic> predict_traffic(const StrategyPlan& plan, const Profile& profile,
                                              const TrainingSetup& setup);

/// Predicts the same global batch on `devices` devices that are like the measured one but have cores and
/// memory of their own, so that nothing contends. The axis of size -1, or else the outermost one that divides
/// the batch, or else the outermost one, gets the devices that the others leave, and models are split anew.
/// The result is marked as simulated. Returns nullopt also if the other sizes do not divide the devices, or
/// if the plan splits the model and there are fewer blocks than stages.
std::optional<Prediction> simulate_devices(const StrategyPlan& plan, const Profile& profile, const Link& link,
                                           const TrainingSetup& setup, int devices);

/// The ways to train on `devices` ranks: every factorization over the axes pipeline, replicate and shard, and
/// one of the texts `layers` or none. A pipeline has at most one stage per block, and devices with samples of
/// their own get at least one each. Returns texts of strategies, such as "pipeline=2,replicate=2,tensor=2";
/// "none" for one device. Throws ValueError unless all numbers are at least 1.
std::vector<std::string> meshes(int devices, int blocks, std::int64_t batch_size,
                                const std::vector<std::string>& layers = {});
/// Predictions of meshes() as simulate_devices() makes them, the fastest first. Their layers are divided in
/// the ways for which the profile was measured, except ways with options and those whose devices do not fit
/// on one host.
std::vector<Prediction> sweep(const Profile& profile, const Link& link, const TrainingSetup& setup,
                              int devices);
/// What a step loses: "3.1 ms wait for shard, 1.2 ms bubble of the pipeline". The largest part is first, and
/// parts below 0.5% of the step are left out.
std::string why(const Prediction& prediction);

/// Returns the measured link with another latency (seconds) or bandwidth (bytes per second) per message. A
/// value that is not given stays as measured. If either is given, the link no longer slows down computing. In
/// the cost of `add`, the addition itself keeps its measured time.
Link link_with(const Link& measured, std::optional<double> latency_s, std::optional<double> bandwidth);
/// Returns the link with this latency (seconds) and bandwidth (bytes per second) between two hosts, see
/// Link::cross. A network card moves the data, so that messages do not slow down computing.
Link link_across(const Link& link, double latency_s, double bandwidth);

}  // namespace tapestry::distributed::planner
