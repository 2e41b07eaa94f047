#pragma once
// What one device, and what lies between two, were measured to be able to do: all that predict.h knows of a
// model and a machine.
#include <cstdint>
#include <string>
#include <vector>

#include "tapestry/apps/compare/curve.h"

namespace apps::compare {

/// One block of a model on one device.
struct BlockProfile {
  std::string name;
  std::vector<std::int64_t> parameter_bytes;  ///< of each trained tensor, in the order of registration
  Curve forward_s, backward_s;                ///< by samples
  double accumulate_s = 0;  ///< more of a micro-batch's backward that finds gradients to add its own to
  double copy_s = 0;        ///< of one whose gradients go to buckets
  double update_s = 0;      ///< the optimizer's step
  Curve kept_bytes;         ///< of what forward leaves for backward, the output included if it stays
  Curve output_bytes;
  Curve forward_extra_bytes;   ///< beyond what it leaves, at forward's peak
  Curve backward_extra_bytes;  ///< beyond what is there when backward begins, at its peak
  /// Of a micro-batch, where backward is done in two halves: that of its inputs and that of its weights, the
  /// latter also where it finds gradients to add to; and what is kept between them. 0 for the first block,
  /// nobody waits for whose inputs' gradients.
  double inputs_s = 0, weights_s = 0, weights_added_s = 0, postponed_bytes = 0;

  std::int64_t all_parameter_bytes() const;
};

/// How much longer a part of a step takes while all devices do it at once, where they share memory: 1 is no
/// longer.
struct Contention {
  double forward = 1, backward = 1, update = 1;
};

/// The same of a part of a split model, while all others are at work with theirs.
struct PartContention {
  double forward = 1;
  double backward = 1;  ///< where it is done in two halves, the first
  double weights = 1;   ///< the second
};

/// A part of a split model with backward passes in two halves, which take longer at one go than its blocks'
/// do one by one. The first part has only the second half.
struct PartInHalves {
  PartContention contention;
  double inputs_s = 0, weights_s = 0, weights_added_s = 0;  ///< alone, with a micro-batch, as of a block
};

/// A model on one device. `loss` is a block too, without parameters.
struct Profile {
  std::vector<BlockProfile> blocks;
  BlockProfile loss;
  double image_bytes = 0, label_bytes = 0;  ///< of a sample
  Contention contention;
  std::vector<PartContention> parts;          ///< of a split model, whole backward passes; empty: none
  std::vector<PartInHalves> parts_in_halves;  ///< the same parts
  double handoff_s = 0;                       ///< calling the workers of all devices and waiting for them

  /// Forward and backward of each block with so many samples.
  std::vector<double> costs(double samples) const;
};

/// How devices add up their gradients.
struct AllReduce {
  Line message;  ///< of a ring, see ring_time
  /// Where the devices compute meanwhile: how many times longer it takes, and the share of that time by which
  /// they are delayed. 1 and 0 where a GPU's copy engines or a network card do it; more where the cores that
  /// compute have to do it too.
  double slower_beside = 1, stops_compute = 0;
  Contention contention;  ///< of steps whose gradients go to buckets
};

/// What lies between devices.
struct Link {
  Line copy;       ///< of a tensor that was just made to another device
  Line broadcast;  ///< of a parameter, after a step: larger ones are no longer in the caches
  Line add;        ///< of a gradient, after a backward pass, and adding it to one that is there
  /// Of steps between those two, in which the first device alone updates.
  Contention master;
  AllReduce local;  ///< between the threads of a process
  AllReduce ranks;  ///< between processes
};

/// JSON, and back. Throw ValueError for other text.
std::string to_text(const Profile& profile);
Profile profile_of(const std::string& text);
std::string to_text(const Link& link);
Link link_of(const std::string& text);

/// Of several measurements of the same things, one after another: the median of every figure. Throw
/// ValueError where there are none or they are not of the same blocks and sizes.
Profile median_of(const std::vector<Profile>& profiles);
Link median_of(const std::vector<Link>& links);

}  // namespace apps::compare
