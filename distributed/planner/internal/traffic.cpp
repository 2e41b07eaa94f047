// Who sends what to whom in a predicted step.
#include <algorithm>

#include "tapestry/distributed/planner/internal/predictors.h"

namespace tapestry::distributed::planner {
namespace {

class Traffic {
 public:
  explicit Traffic(const CostModel& c) : c_(c) {
    while (stage_ < c.axes.size() && c.axes[stage_].division.schedule.empty()) ++stage_;
    std::size_t begin = 0;
    for (const int count : c.setup.split) {
      stages_.push_back({begin, begin + static_cast<std::size_t>(count)});
      begin = stages_.back().end;
    }
  }

  void add_device(int device) {
    const std::vector<double> samples = c_.samples_per_device();
    const double own = samples[data_rank(device)];
    if (stage_ < c_.axes.size()) add_messages(device, own);
    if (c_.one_process && stage_ == c_.axes.size() && device > 0)
      add(0, device, c_.batch_bytes(own), 0, "batch", "forward");
    add_layers(device, own);
    const BlockRange range = range_of(device);
    c_.each_dividing([&](std::size_t i, bool of_parts) {
      const double gathered = c_.sent_bytes(i, c_.divided_bytes(range, of_parts));
      const StepDivision& division = c_.axes[i].division;
      // As often as sent_by_axis() counts it.
      const bool each = stage_ < c_.axes.size() && !division.keeps_whole;
      const double times = each ? std::min(samples[0], static_cast<double>(c_.setup.micro_batches)) : 1;
      if (division.zero > 0) add_to_ring(device, gathered, i, "parameters", "update");
      else add_to_ring(device, times * gathered, i, "parameters", "forward");
      if (division.zero == 0 && (each || stage_ == c_.axes.size()))
        add_to_ring(device, times * gathered, i, "parameters", "backward");
    });
    c_.each_sum(
        c_.parameter_bytes(range), c_.part_bytes(range), [&](std::size_t i, double bytes, bool divides) {
          add_to_ring(device, (divides ? 1 : 2) * c_.sent_bytes(i, bytes), i, "gradients", "backward");
        });
  }

  // The first device sends and receives everything.
  void add_master() {
    const std::vector<double> samples = c_.samples_per_device();
    const double parameters = c_.parameter_bytes(c_.all_blocks()), sent = c_.batch() - samples[0];
    for (std::size_t d = 1; d < samples.size(); ++d) {
      const int device = static_cast<int>(d);
      const double outputs = c_.output_bytes(sent) * samples[d] / sent;
      add(0, device, c_.batch_bytes(samples[d]), 0, "batch", "forward");
      add(0, device, parameters, 0, "parameters", "forward");
      add(device, 0, outputs, 0, "activations", "forward");
      add(0, device, outputs, 0, "gradients", "backward");
      add(device, 0, parameters, 0, "gradients", "backward");
    }
  }

  std::vector<PredictedTraffic> all;

 private:
  int inside(std::size_t axis) const {  // the devices between neighbours along an axis
    int product = 1;
    for (std::size_t i = 0; i < axis; ++i) product *= c_.axes[i].size;
    return product;
  }
  int coordinate(int device, std::size_t axis) const { return device / inside(axis) % c_.axes[axis].size; }
  // The next device along an axis, or along axes that are joined to one.
  int next(int device, std::size_t axis) const {
    const std::vector<std::size_t> own{axis}, &of = c_.axes[axis].of.empty() ? own : c_.axes[axis].of;
    for (const std::size_t i : of) {
      const int at = coordinate(device, i), to = (at + 1) % c_.axes[i].size;
      device += (to - at) * inside(i);
      if (to > 0) break;
    }
    return device;
  }
  std::size_t data_rank(int device) const {
    int rank = 0, product = 1;
    for (std::size_t i = 0; i < c_.axes.size(); ++i) {
      if (!c_.divides_batch(i)) continue;
      rank += product * coordinate(device, i);
      product *= c_.axes[i].size;
    }
    return static_cast<std::size_t>(rank);
  }
  BlockRange range_of(int device) const {
    return stage_ < c_.axes.size() ? stages_[static_cast<std::size_t>(coordinate(device, stage_))]
                                   : c_.all_blocks();
  }

  void add(int from, int to, double bytes, std::size_t axis, const char* kind, const char* phase) {
    if (bytes > 0 && from != to) all.push_back({from, to, bytes, c_.axes[axis].name, kind, phase});
  }
  void add_to_ring(int device, double bytes, std::size_t axis, const char* kind, const char* phase) {
    add(device, next(device, axis), bytes, axis, kind, phase);
  }
  // The activations that a stage receives, and their gradients.
  void add_messages(int device, double own) {
    const BlockRange stage = range_of(device);
    if (stage.begin == 0) return;
    const double bytes = c_.input_bytes(stage.begin, c_.batch()) * own / c_.batch();
    const int before = device - inside(stage_);
    add(before, device, bytes, stage_, "activations", "forward");
    add(device, before, bytes, stage_, "gradients", "backward");
  }

  // What the layers send in all micro-batches.
  void add_layers(int device, double own) {
    const BlockRange range = range_of(device);
    const bool has_loss = range.end == c_.count(), has_parts = stage_ < c_.axes.size();
    const double parts = has_parts ? std::min(own, static_cast<double>(c_.setup.micro_batches)) : 1;
    for (std::size_t i = 0; i < c_.axes.size(); ++i) {
      if (!c_.axes[i].division.layers) continue;
      for (const bool backward : {false, true}) {
        const char* what = "";
        const auto of = [&](const BlockProfile& b) {
          double bytes = 0;
          for (const LayerCollectives& sent : backward ? b.layers_backward : b.layers_forward)
            if (sent.axis == c_.axes[i].name) what = sent.what.c_str(), bytes += sent.bytes(own / parts);
          return bytes;
        };
        const double bytes = parts * (c_.sum(range, of) + (has_loss ? of(c_.profile.loss) : 0));
        add_to_ring(device, bytes, i, what, backward ? "backward" : "forward");
      }
    }
  }

  const CostModel& c_;
  std::size_t stage_ = 0;  // the axis with stages; the number of axes if there is none
  std::vector<BlockRange> stages_;
};

}  // namespace

std::vector<PredictedTraffic> traffic_of(const CostModel& c) {
  Traffic traffic(c);
  if (!c.axes.empty() && c.axes[0].division.sum == StepDivision::Sum::master) traffic.add_master();
  else
    for (int device = 0; device < c.devices(); ++device) traffic.add_device(device);
  return std::move(traffic.all);
}

}  // namespace tapestry::distributed::planner
