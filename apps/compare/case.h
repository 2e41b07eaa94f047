#pragma once
// What all predictions are made from, and sums over it. For predict.cpp and peak_memory.cpp.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "tapestry/apps/compare/profile.h"
#include "tapestry/apps/compare/workload.h"
#include "tapestry/distributed/common/batch.h"

namespace apps::compare {

struct Part {
  std::size_t begin = 0, end = 0;  ///< of the blocks
};

struct Case {
  const Profile& profile;
  const Link& link;
  const Workload& workload;

  std::size_t count() const { return profile.blocks.size(); }
  Part whole() const { return {0, count()}; }
  double batch() const { return static_cast<double>(workload.batch_size); }
  int devices() const { return workload.devices; }
  /// By device; the first ones may have one sample more than the others.
  std::vector<double> shares() const {
    const auto parts =
        tapestry::distributed::chunk_sizes(workload.batch_size, static_cast<std::size_t>(workload.devices));
    return {parts.begin(), parts.end()};
  }
  bool on_gpus() const { return workload.device_type == tapestry::DeviceType::cuda; }

  template <class F>
  double sum(Part part, const F& of) const {
    double total = 0;
    for (std::size_t k = part.begin; k < part.end; ++k) total += of(profile.blocks[k]);
    return total;
  }
  double forward(Part part, double n) const {
    return sum(part, [&](const BlockProfile& b) { return b.forward_s.at(n); });
  }
  double backward(Part part, double n) const {
    return sum(part, [&](const BlockProfile& b) { return b.backward_s.at(n); });
  }
  double update(Part part) const {
    return sum(part, [](const BlockProfile& b) { return b.update_s; });
  }
  double parameters(Part part) const {
    return sum(part, [](const BlockProfile& b) { return static_cast<double>(b.all_parameter_bytes()); });
  }
  double tensors() const {
    return sum(whole(), [](const BlockProfile& b) { return static_cast<double>(b.parameter_bytes.size()); });
  }
  double largest_parameter() const {
    std::int64_t most = 0;
    for (const BlockProfile& b : profile.blocks)
      for (const std::int64_t bytes : b.parameter_bytes) most = std::max(most, bytes);
    return static_cast<double>(most);
  }
  double output_bytes(double n) const { return profile.blocks.back().output_bytes.at(n); }
  /// Into a part of the model; of the first one, images.
  double input_bytes(std::size_t block, double n) const {
    return block == 0 ? profile.image_bytes * n : profile.blocks[block - 1].output_bytes.at(n);
  }
};

}  // namespace apps::compare
