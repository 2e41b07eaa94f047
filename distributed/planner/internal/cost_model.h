#pragma once
// The arguments of a prediction (profile, link, training setup, and the axes of a plan), and functions that
// the predictors share, such as the time of a range of blocks.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "tapestry/distributed/common/batch.h"
#include "tapestry/distributed/planner/planner.h"

namespace tapestry::distributed::planner {

/// The blocks from `begin` to before `end`.
struct BlockRange {
  std::size_t begin = 0, end = 0;
};

/// An axis of a plan with the number of its devices, and the costs of communication along it. Or a joined
/// axis: several axes along which copies add their gradients at once, see with_sums().
struct PlannedAxis {
  int size = 1;
  StepDivision division = {};
  AllReduce costs = {};
  std::string name = {};
  std::vector<std::size_t> of = {};  ///< the places of the axes that are joined, from the innermost
  bool parts = false;                ///< of joined axes: they add the gradients of divided parameters alone
};

/// Appends to the axes (from the innermost) the joined axes along which copies add their gradients. Appends
/// none if no axis but `replicate` has copies. One joined axis has all axes with copies. If an axis divides
/// experts, another one has those whose devices have the same experts.
std::vector<PlannedAxis> with_sums(std::vector<PlannedAxis> axes);

/// Times are in seconds, n is a number of samples.
struct CostModel {
  const Profile& profile;
  const Link& link;
  const TrainingSetup& setup;
  std::vector<PlannedAxis> axes = {};  ///< see with_sums()
  bool one_process = false;            ///< the axes are over devices of one process, not over ranks

  /// The costs between devices that share a host, and their contention.
  const AllReduce& collectives() const { return one_process ? link.local : link.ranks; }
  /// How many devices divide the parameters.
  int shards() const {
    int product = 1;
    for (const PlannedAxis& axis : axes) product *= axis.division.divides_model() ? axis.size : 1;
    return product;
  }
  /// True for an axis of the plan whose devices have samples of their own.
  bool divides_batch(std::size_t axis) const {
    return axes[axis].of.empty() && axes[axis].division.divides_batch();
  }
  /// Calls f(axis, bytes of gradients, divides) for each axis over which devices add gradients, from the
  /// innermost. The parameters have `bytes`, of which `part_bytes` are of experts. If an axis keeps a part on
  /// each device (`divides`), the axes outside it add this part only.
  template <class F>
  void each_sum(double bytes, double part_bytes, const F& f) const {
    for (std::size_t i = 0; i < axes.size(); ++i) {
      const StepDivision& d = axes[i].division;
      if (d.sum == StepDivision::Sum::none) continue;
      const bool divides = d.divides_model() || d.zero == 2;
      f(i, d.divides_model() ? bytes : axes[i].parts ? part_bytes : bytes - part_bytes, divides);
      if (!d.divides_model()) continue;
      bytes /= axes[i].size;
      part_bytes /= axes[i].size;
    }
  }
  /// The bytes of a block's experts if these have no copies, so that no devices add their gradients;
  /// otherwise 0.
  double unsummed_bytes(const BlockProfile& b) const {
    for (const PlannedAxis& axis : axes)
      if (axis.parts) return 0;
    return static_cast<double>(b.part_bytes());
  }
  /// The time to add gradients over an axis.
  double reduce_s(std::size_t axis, double bytes, bool divides) const {
    const PlannedAxis& a = axes[axis];
    return divides ? a.costs.scatter_s(bytes, a.size) : ring_time(a.costs.message, bytes, a.size);
  }
  /// The axis whose devices keep or update parts of the parameters; the number of axes if there is none. With
  /// `of_parts`, the axis of experts that have fewer copies than other parameters.
  std::size_t dividing_axis(bool of_parts = false) const {
    std::size_t i = 0;
    while (i < axes.size() && (!axes[i].division.divides_optimizer() || axes[i].parts != of_parts)) ++i;
    return i;
  }
  /// The stage of ZeRO; 0 if there is none.
  int zero() const {
    const std::size_t i = dividing_axis();
    return i < axes.size() ? axes[i].division.zero : 0;
  }
  /// Calls f(axis, of_parts) for each axis whose devices divide parameters or the optimizer's state: under
  /// ZeRO, experts along their own one.
  template <class F>
  void each_dividing(const F& f) const {
    for (const bool of_parts : {false, true})
      if (const std::size_t i = dividing_axis(of_parts); i < axes.size()) f(i, of_parts);
  }
  /// The bytes of the parameters that the devices of dividing_axis(of_parts) divide.
  double divided_bytes(BlockRange range, bool of_parts) const {
    if (of_parts) return part_bytes(range);
    return parameter_bytes(range) - (zero() > 0 ? part_bytes(range) : 0);
  }
  /// The part of the parameters of a range that a device updates, and whose optimizer state it has.
  double optimizer_share(BlockRange range) const {
    const auto own = [&](bool of_parts) {
      const std::size_t i = dividing_axis(of_parts);
      return i < axes.size() ? 1.0 / axes[i].size : 1.0;
    };
    const double parts = zero() > 0 ? part_bytes(range) : 0;
    if (parts == 0) return own(false);
    return (own(false) * divided_bytes(range, false) + own(true) * parts) / parameter_bytes(range);
  }
  /// The time to gather parameters along an axis whose devices keep or update parts of them.
  double gather_s(std::size_t axis, double bytes) const {
    return axes[axis].costs.gather_s(bytes, axes[axis].size);
  }
  /// The costs by axis, for simulate().
  std::vector<const AllReduce*> interference() const {
    std::vector<const AllReduce*> all;
    for (const PlannedAxis& axis : axes) all.push_back(&axis.costs);
    return all;
  }

  /// The place of the axis along which divided layers send `sent`.
  std::size_t axis_of(const LayerCollectives& sent) const {
    std::size_t i = 0;
    while (axes.at(i).name != sent.axis) ++i;
    return i;
  }
  /// How many devices compute the same samples, because they divide layers.
  int devices_of_sample() const {
    int product = 1;
    for (std::size_t i = 0; i < axes.size(); ++i)
      product *= axes[i].division.layers && !divides_batch(i) ? axes[i].size : 1;
    return product;
  }
  /// How long the divided layers of a block wait for one another.
  double layers_s(const std::vector<LayerCollectives>& sent, double n) const {
    double seconds = 0;
    for (const LayerCollectives& s : sent) seconds += s.seconds(axes[axis_of(s)].costs, n);
    return seconds;
  }

  /// Gradients are added in buckets during backward.
  bool adds_in_buckets() const {
    bool buckets = false;
    for (const PlannedAxis& axis : axes) {
      if (axis.division.divides_model()) return false;
      buckets = buckets || axis.division.sum == StepDivision::Sum::buckets;
    }
    return buckets;
  }
  /// Devices divide gradients in buckets, as under stage 2 of ZeRO.
  bool divides_buckets() const { return zero() == 2 && axes[dividing_axis()].size > 1; }

  std::size_t count() const { return profile.blocks.size(); }
  BlockRange all_blocks() const { return {0, count()}; }
  double batch() const { return static_cast<double>(setup.batch_size); }
  int devices() const { return setup.devices; }
  /// How many devices have samples of their own.
  int data_size() const {
    int product = 1;
    for (std::size_t i = 0; i < axes.size(); ++i) product *= divides_batch(i) ? axes[i].size : 1;
    return product;
  }
  /// Samples of each device that has its own. The first have one more if the batch does not divide evenly.
  std::vector<double> samples_per_device() const {
    const auto samples = chunk_sizes(setup.batch_size, static_cast<std::size_t>(data_size()));
    return {samples.begin(), samples.end()};
  }
  bool on_gpus() const { return setup.device_type == DeviceType::cuda; }

  template <class F>
  double sum(BlockRange range, const F& value) const {
    double total = 0;
    for (std::size_t k = range.begin; k < range.end; ++k) total += value(profile.blocks[k]);
    return total;
  }
  double forward(BlockRange range, double n) const {
    return sum(range, [&](const BlockProfile& b) { return b.forward_s.at(n); });
  }
  double backward(BlockRange range, double n) const {
    return sum(range, [&](const BlockProfile& b) { return b.backward_s.at(n); });
  }
  double update(BlockRange range) const {
    return sum(range, [](const BlockProfile& b) { return b.update_s; });
  }
  double parameter_bytes(BlockRange range) const {
    return sum(range, [](const BlockProfile& b) { return static_cast<double>(b.all_parameter_bytes()); });
  }
  double part_bytes(BlockRange range) const {
    return sum(range, [](const BlockProfile& b) { return static_cast<double>(b.part_bytes()); });
  }
  /// The bytes that a device sends over axis `i` in an all-gather or a reduce-scatter of `bytes` in total.
  double sent_bytes(std::size_t i, double bytes) const { return bytes * (axes[i].size - 1) / axes[i].size; }
  double parameter_count() const {
    return sum(all_blocks(),
               [](const BlockProfile& b) { return static_cast<double>(b.parameter_bytes.size()); });
  }
  double largest_parameter_bytes() const {
    std::int64_t most = 0;
    for (const BlockProfile& b : profile.blocks)
      for (const std::int64_t bytes : b.parameter_bytes) most = std::max(most, bytes);
    return static_cast<double>(most);
  }
  double output_bytes(double n) const { return profile.blocks.back().output_bytes.at(n); }
  /// Returns the bytes of the input of a block. This is the model's input for the first block, otherwise the
  /// output of the block before.
  double input_bytes(std::size_t block, double n) const {
    return block == 0 ? profile.input_sample_bytes * n : profile.blocks[block - 1].output_bytes.at(n);
  }
  /// Returns the bytes of the inputs and targets of n samples.
  double batch_bytes(double n) const {
    return n * (profile.input_sample_bytes + profile.target_sample_bytes);
  }
};

}  // namespace tapestry::distributed::planner
