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

/// An axis of a plan with the number of its devices.
struct PlannedAxis {
  int size = 1;
  StepDivision division = {};
};

/// Times are in seconds, n is a number of samples.
struct CostModel {
  const Profile& profile;
  const Link& link;
  const TrainingSetup& setup;
  std::vector<PlannedAxis> axes = {};  ///< from the innermost to the outermost
  bool one_process = false;            ///< the axes are over devices of one process, not over ranks

  const AllReduce& collectives() const { return one_process ? link.local : link.ranks; }
  /// How many devices divide the batch, the parameters, or the optimizer's state.
  int parts(bool (StepDivision::*divides)() const) const {
    int product = 1;
    for (const auto& [size, division] : axes) product *= (division.*divides)() ? size : 1;
    return product;
  }
  /// The time to add gradients over the axes, one axis after another: an axis that keeps a part on each
  /// device leaves this part to the axes outside it.
  double reduce_s(double bytes) const {
    double seconds = 0;
    for (const auto& [size, division] : axes) {
      if (division.divides_model() || division.zero == 2) {
        seconds += collectives().scatter_s(bytes, size);
        bytes /= size;
      } else {
        seconds += ring_time(collectives().message, bytes, size);
      }
    }
    return seconds;
  }
  /// The time to gather parameters whose parts the devices keep or update.
  double gather_s(double bytes) const {
    return collectives().gather_s(bytes, parts(&StepDivision::divides_optimizer));
  }

  std::size_t count() const { return profile.blocks.size(); }
  BlockRange all_blocks() const { return {0, count()}; }
  double batch() const { return static_cast<double>(setup.batch_size); }
  int devices() const { return setup.devices; }
  /// Samples of each device that has its own. The first have one more if the batch does not divide evenly.
  std::vector<double> samples_per_device() const {
    const auto samples =
        chunk_sizes(setup.batch_size, static_cast<std::size_t>(parts(&StepDivision::divides_batch)));
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
