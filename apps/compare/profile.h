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
  double accumulate_s = 0;  ///< more of a backward pass that finds gradients to add its own to
  double update_s = 0;      ///< the optimizer's step
  Curve kept_bytes;         ///< of what forward leaves for backward, the output included if it stays
  Curve output_bytes;
  Curve forward_extra_bytes;   ///< beyond what it leaves, at forward's peak
  Curve backward_extra_bytes;  ///< beyond what is there when backward begins, at its peak

  std::int64_t all_parameter_bytes() const;
};

/// How much longer something takes while all devices do it at once, where they share memory: 1 is no longer.
struct Contention {
  double forward = 1, backward = 1, update = 1;
};

/// A model on one device. `loss` is a block too, without parameters.
struct Profile {
  std::vector<BlockProfile> blocks;
  BlockProfile loss;
  double image_bytes = 0, label_bytes = 0;  ///< of a sample
  Contention contention;
  double handoff_s = 0;  ///< calling the workers of all devices and waiting for them

  /// Forward and backward of each block with so many samples.
  std::vector<double> costs(double samples) const;
};

/// How devices add up their gradients.
struct AllReduce {
  Line message;  ///< of a ring, see ring_time
  /// The share of communication's time in which computing stands still: 0 where a GPU's copy engines or a
  /// network card do it, near 1 where all cores compute and one of them has to communicate.
  double stops_compute = 0;
};

/// What lies between devices.
struct Link {
  Line copy;        ///< of a tensor to another device
  Line add;         ///< and adding it to one that is there
  AllReduce local;  ///< between the threads of a process
  AllReduce ranks;  ///< between processes
};

/// JSON, and back. Throw ValueError for other text.
std::string to_text(const Profile& profile);
Profile profile_of(const std::string& text);
std::string to_text(const Link& link);
Link link_of(const std::string& text);

}  // namespace apps::compare
