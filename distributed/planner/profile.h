#pragma once
// The measurements that predictions use: the costs of a model on one device (Profile) and of the
// communication between devices (Link).
#include <cstdint>
#include <string>
#include <vector>

#include "tapestry/distributed/planner/curve.h"

namespace tapestry::distributed::planner {

/// The memory of a block's backward until the gradient of one of its parameters has arrived, or, in the last
/// interval, until the block's backward ends. All bytes count above what was allocated before the block's
/// forward, and without the gradients of earlier intervals.
struct BackwardInterval {
  int parameter = -1;      ///< the index of the parameter whose gradient ends the interval; -1 if none does
  Curve peak_bytes;        ///< with the gradients that the interval makes
  Curve accumulate_bytes;  ///< the same if gradients of the parameters exist, which the new ones are added to
  Curve end_bytes;         ///< when the gradient has arrived, with the gradient
};

/// One pass of a backward that is split in two as in zero-bubble schedules, in bytes.
struct SplitPassMemory {
  double peak = 0;    ///< the pass's peak in the block above what is allocated when it begins there
  double growth = 0;  ///< what the pass leaves allocated, less what it frees
};

struct AllReduce;

/// Collectives of one kind along an axis whose devices divide layers.
struct RingMessages {
  double count = 0;  ///< messages of their rings, one after another
  Curve bytes;       ///< that a device sends in them
};
/// What the layers of a block send along an axis in a pass. The layers wait for it, and nothing hides it,
/// except the messages of ring attention, which pass beside it.
struct LayerCollectives {
  std::string axis, what;  ///< "tensor"; "activations" or "tokens"
  /// An all-to-all counts as an all-gather of unequal parts.
  RingMessages all_reduce, all_gather, reduce_scatter;
  RingMessages beside;  ///< those that pass while attention computes for `beside_s` seconds
  Curve beside_s;
  /// How long the layers wait with n samples, in seconds.
  double seconds(const AllReduce& costs, double n) const;
  double bytes(double n) const;
  /// The bytes of the whole tensors that `devices` devices (2 or more) add, gather or divide, and of the
  /// messages beside attention. bytes() is what one device sends of them.
  double whole_bytes(double n, int devices) const;
};

/// The costs of one block of the model on one device. Curves are functions of the number of samples. Times
/// are in seconds.
struct BlockProfile {
  std::string name;
  std::vector<std::int64_t> parameter_bytes;  ///< per trained tensor, in registration order
  /// The indices of the tensors of experts: the devices of an axis divide these, and copy all others.
  std::vector<int> parts;
  Curve forward_s, backward_s;
  /// The extra time of a micro-batch's backward pass if gradients already exist and must be added to.
  double accumulate_s = 0;
  double bucket_copy_s = 0;  ///< copying the block's gradients into their all-reduce bucket
  double update_s = 0;       ///< the optimizer step
  /// What forward leaves allocated, with the output, less the input if nothing needs it for backward.
  Curve saved_bytes;
  Curve output_bytes;
  Curve freed_input_bytes;     ///< the part of the input that forward frees
  Curve unsaved_output_bytes;  ///< the part of the output that only the next block needs, for its backward
  /// What the first interval of backward needs besides if another device sends the gradient of the output;
  /// below 0 if it needs less.
  Curve received_extra_bytes;
  Curve forward_extra_bytes;  ///< forward's peak above saved_bytes and freed_input_bytes
  std::vector<BackwardInterval> backward;
  /// The costs of a micro-batch if backward is split in two passes as in zero-bubble schedules. The first
  /// pass computes input gradients in `input_grad_s`. The second pass computes weight gradients in
  /// `weight_grad_s`, or in `weight_grad_accumulate_s` if it adds to existing gradients. All are 0 for the
  /// first block, which needs no input gradients and so runs its whole backward as one pass. Uneven
  /// micro-batches count as the smallest, for which these are measured.
  double input_grad_s = 0, weight_grad_s = 0, weight_grad_accumulate_s = 0;
  /// The memory of the passes. The peak of the first pass counts above what was allocated before the block's
  /// forward and what the later blocks keep for the second pass; its growth is what the block keeps.
  SplitPassMemory input_grad, weight_grad, weight_grad_accumulate;
  /// What divided layers send, by axis: see DividedLayers. The times above leave it out.
  std::vector<LayerCollectives> layers_forward, layers_backward;

  std::int64_t all_parameter_bytes() const;
  std::int64_t part_bytes() const;
  bool is_part(std::size_t parameter) const;
};

/// Slowdown factors caused by contention: time when all devices work at once divided by time alone. They are
/// at least 1. Cores of one CPU contend for memory bandwidth and caches.
struct Contention {
  double forward = 1, backward = 1, update = 1;
};

/// Slowdown factors of one stage of a split model while all other stages compute.
struct StageContention {
  double forward = 1;
  double backward = 1;  ///< the input-gradient pass if backward is split in two
  double weights = 1;   ///< the weight-gradient pass
};

/// A stage whose backward is split in two. The stage is measured as a whole, because its passes take longer
/// than the sum of its blocks' passes. The first stage has only the weight-gradient pass.
struct ZeroBubbleStage {
  StageContention contention;
  /// The times of a micro-batch without contention, as in BlockProfile.
  double input_grad_s = 0, weight_grad_s = 0, weight_grad_accumulate_s = 0;
};

/// The costs of a model whose layers the devices of some axes divide (tensor_parallel, context_parallel,
/// expert_parallel), on a device that has the largest parts.
struct DividedLayers {
  std::string axes;  ///< see MeasureOptions::layers
  std::vector<BlockProfile> blocks;
  BlockProfile loss;
  double optimizer_state = 0;
  double input_sample_bytes = 0, target_sample_bytes = 0;  ///< of a sample on a device, with its part of it
};

/// The costs of a model on one device.
struct Profile {
  std::vector<BlockProfile> blocks;
  BlockProfile loss;  ///< the loss as a block without parameters
  double input_sample_bytes = 0, target_sample_bytes = 0;
  /// Bytes of optimizer state per byte of parameters: 0 for SGD, 1 with momentum, 2 for AdamW.
  double optimizer_state = 0;
  Contention contention;
  /// `stages` and `zero_bubble_stages` have one entry per stage of the split for which the stages were
  /// measured. Both are empty if no split was measured.
  std::vector<StageContention> stages;
  std::vector<ZeroBubbleStage> zero_bubble_stages;
  double dispatch_s = 0;               ///< starting a task on the workers of all devices and waiting for them
  std::vector<DividedLayers> divided;  ///< see MeasureOptions::layers

  /// The time of forward plus backward per block, in seconds, for a number of samples.
  std::vector<double> costs(double samples) const;
};

/// The costs of communication between the devices of an axis, such as averages of gradients.
struct AllReduce {
  TransferCost message;  ///< the cost of one message of the ring, see ring_time
  /// The costs of one message of an all-gather and of a reduce-scatter, see half_ring_time. An all-gather
  /// only copies, and a reduce-scatter also adds. If both costs are 0, they were not measured, and either
  /// takes half as long as an all-reduce.
  TransferCost gather_message = {}, scatter_message = {};
  /// The cost of a message from one stage of a pipeline to the next. If it is 0, it was not measured, and is
  /// that of `message`.
  TransferCost peer_message = {};
  /// An all-reduce that overlaps backward takes `overlap_slowdown` times as long, from the time at which it
  /// can begin, and delays backward by the fraction `compute_stall` of its duration. They are 1 and 0 if copy
  /// engines or a network card move the data, and larger if the cores that compute also communicate.
  double overlap_slowdown = 1, compute_stall = 0;
  Contention contention;  ///< the contention in steps that copy gradients into buckets

  /// The seconds of an all-gather or a reduce-scatter of `bytes` in total over n devices.
  double gather_s(double bytes, int n) const;
  double scatter_s(double bytes, int n) const;
  double peer_s(double bytes) const;
};

/// The costs of communication between devices.
struct Link {
  TransferCost copy;       ///< copying a freshly computed tensor to another device
  TransferCost broadcast;  ///< copying one parameter after a step, when large parameters are not in caches
  TransferCost add;        ///< copying one gradient after backward and adding it to another
  /// The contention under DataParallelMode::master, in steps that broadcast parameters before forward and add
  /// gradients after backward. Only the first device runs the optimizer.
  Contention master_contention;
  AllReduce local;  ///< between threads of one process
  AllReduce ranks;  ///< between processes of one host
  /// Between processes of two hosts, of a message that has the link between them for itself. If its message
  /// costs nothing, it was not measured, and is `ranks`.
  AllReduce cross;
};

/// Converts to JSON and back. The parsers throw ValueError if the text is not a profile or a link. A
/// profile's text has a version, and one of another version is refused, because its costs have other
/// meanings.
std::string to_text(const Profile& profile);
Profile profile_from_text(const std::string& text);
std::string to_text(const Link& link);
Link link_from_text(const std::string& text);

/// The median of every number over repeated measurements of the same model. Throws ValueError if the list is
/// empty or the measurements differ in blocks or batch sizes.
Profile median_of(const std::vector<Profile>& profiles);
Link median_of(const std::vector<Link>& links);

}  // namespace tapestry::distributed::planner
