#include "tapestry/distributed/planner/internal/passes.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <utility>

#include "tapestry/distributed/common/internal/bucket.h"
#include "tapestry/distributed/planner/internal/ddp_buckets.h"
#include "tapestry/distributed/planner/internal/overlap.h"
#include "tapestry/distributed/planner/internal/sharded_step.h"
#include "tapestry/distributed/planner/internal/step_queues.h"

namespace tapestry::distributed::planner {

namespace {

double sum_of(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0);
}

DdpBuckets assigned(const std::vector<BucketParameter>& parameters, std::int64_t first, std::int64_t cap) {
  std::vector<int> order(parameters.size());
  std::iota(order.begin(), order.end(), 0);
  DdpBuckets buckets;
  buckets.of_gradient.resize(parameters.size());
  for (const auto& members :
       assign_buckets(parameters, order, static_cast<std::size_t>(first), static_cast<std::size_t>(cap))) {
    double bytes = 0;
    for (const int i : members) {
      bytes += static_cast<double>(parameters[static_cast<std::size_t>(i)].bytes);
      buckets.of_gradient[static_cast<std::size_t>(i)] = buckets.bytes.size();
    }
    buckets.bytes.push_back(bytes);
  }
  return buckets;
}

// The buckets in which parameters are gathered along an axis after an update, under ZeRO.
DdpBuckets gathered_buckets(const CostModel& c, BlockRange range, bool of_parts) {
  if (c.zero() == 1) return zero1_buckets(c, range, of_parts);
  return ddp_buckets(c, range, {std::vector<double>(range.end - range.begin), 0}, 1, of_parts);
}

PassCost cost_of(const ShardedStep& step, const CostModel& c) {
  const StepQueues times = simulate(step.phases, step.collectives, c.interference());
  return {sum_of(times.computing_s), times.exposed_s, step.communication(c, times)};
}

// Collectives that move these buckets along axis `i`.
std::vector<Collected> of_buckets(const CostModel& c, std::size_t i, const DdpBuckets& buckets,
                                  const std::string& what) {
  std::vector<Collected> all;
  for (std::size_t b = 0; b < buckets.bytes.size(); ++b) {
    all.push_back({what + std::to_string(b), moved(c, i, buckets.bytes[b])});
    all.back().subject.bucket = static_cast<int>(b);
  }
  return all;
}

}  // namespace

double BlockTimes::sum() const { return sum_of(blocks_s) + loss_s; }
double BlockTimes::layers_sum() const { return sum_of(layers_s) + loss_layers_s; }

BlockTimes BlockTimes::scaled_to(double to) const {
  const std::vector<double> nothing(blocks_s.size());
  if (to == 0) return {nothing, 0, nothing, 0, samples};  // also the waits are in another pass
  const double waits = layers_sum(), from = sum() - waits, factor = from > 0 ? (to - waits) / from : 0;
  BlockTimes scaled = *this;
  for (std::size_t k = 0; k < blocks_s.size(); ++k)
    scaled.blocks_s[k] = (blocks_s[k] - layers_s[k]) * factor + layers_s[k];
  scaled.loss_s = (loss_s - loss_layers_s) * factor + loss_layers_s;
  return scaled;
}

namespace {

BlockTimes times_of(const CostModel& c, BlockRange range, double n, bool has_loss, double slowdown,
                    Curve BlockProfile::*seconds, std::vector<LayerCollectives> BlockProfile::*layers) {
  BlockTimes times;
  times.samples = n;
  for (std::size_t k = range.begin; k < range.end; ++k) {
    const BlockProfile& b = c.profile.blocks[k];
    times.layers_s.push_back(c.layers_s(b.*layers, n));
    times.blocks_s.push_back(slowdown * (b.*seconds).at(n) + times.layers_s.back());
  }
  if (!has_loss) return times;
  times.loss_layers_s = c.layers_s(c.profile.loss.*layers, n);
  times.loss_s = slowdown * (c.profile.loss.*seconds).at(n) + times.loss_layers_s;
  return times;
}

}  // namespace

BlockTimes forward_times(const CostModel& c, BlockRange range, double n, bool has_loss, double slowdown) {
  return times_of(c, range, n, has_loss, slowdown, &BlockProfile::forward_s, &BlockProfile::layers_forward);
}

BlockTimes backward_times(const CostModel& c, BlockRange range, double n, bool has_loss, double slowdown) {
  return times_of(c, range, n, has_loss, slowdown, &BlockProfile::backward_s, &BlockProfile::layers_backward);
}

std::vector<Communication> block_waits(const CostModel& c, const BlockProfile& b, bool backward, double n,
                                       double end_s) {
  const std::vector<LayerCollectives>& sent = backward ? b.layers_backward : b.layers_forward;
  std::vector<Communication> all;
  double now = end_s - c.layers_s(sent, n);
  for (const LayerCollectives& s : sent) {
    const std::size_t axis = c.axis_of(s);
    const double seconds = s.seconds(c.axes[axis].costs, n);
    Collected wait{"wait for " + b.name + " " + s.what, moved(c, axis, s.whole_bytes(n, c.axes[axis].size))};
    if (&b != &c.profile.loss) wait.subject.module = b.name;
    if (seconds > 0) all.push_back({false, wait, now, now + seconds});
    now += seconds;
  }
  return all;
}

std::vector<Communication> layer_waits(const CostModel& c, BlockRange range, const BlockTimes& times,
                                       bool backward, double copies) {
  std::vector<Communication> all;
  double now = 0;
  const auto add = [&](const BlockProfile& b, double seconds, double waits) {
    now += seconds;
    if (waits == 0) return;
    for (Communication& wait : block_waits(c, b, backward, times.samples, now))
      all.push_back(std::move(wait));
  };
  if (backward) add(c.profile.loss, times.loss_s, times.loss_layers_s);
  for (std::size_t i = range.begin; i < range.end; ++i) {
    const std::size_t k = backward ? range.begin + range.end - 1 - i : i;
    const BlockProfile& b = c.profile.blocks[k];
    add(b, times.blocks_s[k - range.begin], times.layers_s[k - range.begin]);
    if (backward) now += copies * b.bucket_copy_s;
  }
  if (!backward) add(c.profile.loss, times.loss_s, times.loss_layers_s);
  return all;
}

double PassCost::exposed() const { return sum_of(exposed_s); }

DdpBuckets ddp_buckets(const CostModel& c, BlockRange range, const BlockTimes& times, double slowdown,
                       bool parts) {
  std::vector<BucketParameter> parameters;
  std::vector<double> ready_of;  // per parameter, in seconds of computing
  double compute = times.loss_s;
  for (std::size_t k = range.end; k-- > range.begin;) {
    const BlockProfile& block = c.profile.blocks[k];
    compute += times.blocks_s[k - range.begin];
    compute += slowdown * block.bucket_copy_s;
    for (std::size_t i = block.parameter_bytes.size(); i-- > 0;) {
      if (block.is_part(i) != parts) continue;
      parameters.push_back({static_cast<std::size_t>(block.parameter_bytes[i]), DType::f32, {}});
      ready_of.push_back(compute);
    }
  }
  DdpBuckets buckets = assigned(parameters, c.setup.first_bucket_bytes, c.setup.bucket_cap_bytes);
  buckets.compute_s = compute;
  buckets.ready_s.resize(buckets.bytes.size());
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    double& ready = buckets.ready_s[buckets.of_gradient[i]];
    ready = std::max(ready, ready_of[i]);
  }
  return buckets;
}

DdpBuckets zero1_buckets(const CostModel& c, BlockRange range, bool parts) {
  std::vector<BucketParameter> parameters;
  for (std::size_t k = range.begin; k < range.end; ++k) {
    const BlockProfile& block = c.profile.blocks[k];
    for (std::size_t i = 0; i < block.parameter_bytes.size(); ++i)
      if (block.is_part(i) == parts)
        parameters.push_back({static_cast<std::size_t>(block.parameter_bytes[i]), DType::f32, {}});
  }
  return assigned(parameters, c.setup.bucket_cap_bytes, c.setup.bucket_cap_bytes);
}

PassCost backward_with_buckets(const CostModel& c, BlockRange range, const BlockTimes& times,
                               double slowdown) {
  struct Bucket {
    double ready_s, reduce_s;
    std::size_t axis;
    Collected what;
  };
  std::vector<Bucket> all;  // of experts too, if they have copies
  double compute_s = 0;
  c.each_sum(0, 0, [&](std::size_t i, double, bool divides) {
    const bool parts = c.axes[i].parts;
    const DdpBuckets buckets = ddp_buckets(c, range, times, slowdown, parts);
    const std::vector<Collected> names = of_buckets(c, i, buckets, parts ? "bucket of experts " : "bucket ");
    for (std::size_t b = 0; b < names.size(); ++b)
      all.push_back({buckets.ready_s[b], c.reduce_s(i, buckets.bytes[b], divides), i, names[b]});
    compute_s = buckets.compute_s;
  });
  std::stable_sort(all.begin(), all.end(),
                   [](const Bucket& a, const Bucket& b) { return a.ready_s < b.ready_s; });
  std::vector<double> ready_s, reduce_s;
  std::vector<std::size_t> queues;
  std::vector<Collected> names;
  for (const Bucket& b : all) {
    ready_s.push_back(b.ready_s);
    reduce_s.push_back(b.reduce_s);
    queues.push_back(b.axis);
    names.push_back(b.what);
  }
  const StepQueues o = overlap(ready_s, reduce_s, compute_s, c.interference(), queues);
  PassCost cost{sum_of(o.computing_s), o.exposed_s, communication_of(o, {}, names)};
  for (Communication& wait : layer_waits(c, range, times, true, slowdown))
    cost.communication.push_back(std::move(wait));
  return cost;
}

PassCost forward_with_units(const CostModel& c, BlockRange range, const BlockTimes& times) {
  return cost_of(ShardedStep(c, range, &times, nullptr, {}), c);
}

PassCost backward_with_units(const CostModel& c, BlockRange range, const BlockTimes& times,
                             const UnitCollectives& collectives) {
  return cost_of(ShardedStep(c, range, nullptr, &times, collectives), c);
}

PassCost update_cost(const CostModel& c, BlockRange range, double slowdown) {
  const double share = c.optimizer_share(range);
  PassCost cost{slowdown * c.update(range) * share, std::vector<double>(c.axes.size())};
  if (c.zero() == 0) return cost;
  const double own_bytes = share * c.parameter_bytes(range);
  std::vector<ComputePhase> updates;
  std::vector<Collective> gathers;
  std::vector<Collected> names;
  c.each_dividing([&](std::size_t axis, bool of_parts) {
    const DdpBuckets buckets = gathered_buckets(c, range, of_parts);
    for (const double bytes : buckets.bytes) {
      updates.push_back({cost.computing_s * bytes / c.axes[axis].size / own_bytes});
      gathers.push_back(
          {.seconds = c.gather_s(axis, bytes), .after = static_cast<int>(gathers.size()), .queue = axis});
    }
    const char* const what = of_parts ? "all_gather of bucket of experts " : "all_gather of bucket ";
    for (Collected& name : of_buckets(c, axis, buckets, what)) names.push_back(std::move(name));
  });
  const StepQueues step = simulate(updates, gathers, c.interference());
  return {sum_of(step.computing_s), step.exposed_s, communication_of(step, updates, names)};
}

MemoryItems with_update(const CostModel& c, BlockRange range, const MemoryItems& peak,
                        std::vector<HeldMemory>* held) {
  if (c.zero() == 0) return peak;
  // While the parameters are gathered, at most two whole buckets exist besides, with this rank's parts of
  // them.
  std::vector<double> gathered{0, 0};
  c.each_dividing([&](std::size_t axis, bool of_parts) {
    const int size = c.axes[axis].size;
    if (size == 1) return;
    for (const double bytes : gathered_buckets(c, range, of_parts).bytes)
      gathered.push_back(bytes * (1 + 1.0 / size));
  });
  std::partial_sort(gathered.begin(), gathered.begin() + 2, gathered.end(), std::greater<>());
  MemoryItems updating = peak;
  updating.activations = updating.gradients = 0;
  updating.workspace = gathered[0] + gathered[1];
  if (c.zero() == 2) updating.buckets = c.parameter_bytes(range) * c.optimizer_share(range);
  if (held) held->push_back({held->back().action + 1, 0, updating});
  return updating.total() > peak.total() ? updating : peak;
}

std::vector<double> sent_by_axis(const CostModel& c, BlockRange range, int gathers) {
  std::vector<double> sent(c.axes.size());
  c.each_dividing([&](std::size_t i, bool of_parts) {
    sent[i] += (c.zero() > 0 ? 1 : gathers) * c.sent_bytes(i, c.divided_bytes(range, of_parts));
  });
  c.each_sum(c.parameter_bytes(range), c.part_bytes(range), [&](std::size_t i, double bytes, bool divides) {
    sent[i] += (divides ? 1 : 2) * c.sent_bytes(i, bytes);
  });
  return sent;
}

std::vector<Communication> communication_of(const StepQueues& times, std::span<const ComputePhase> phases,
                                            const std::vector<Collected>& collectives) {
  std::vector<Communication> all;
  const auto wait_for = [](const Collected& c) { return Collected{"wait for " + c.name, c.subject}; };
  double now = 0;
  for (std::size_t i = 0; i < times.phase_ended_s.size(); ++i) {
    if (times.waiting_s[i] > 0)
      all.push_back({false, wait_for(collectives[static_cast<std::size_t>(phases[i].needs)]), now,
                     now + times.waiting_s[i]});
    now = times.phase_ended_s[i];
  }
  if (times.tail_s > 0) all.push_back({false, wait_for(collectives.back()), now, now + times.tail_s});
  for (std::size_t i = 0; i < collectives.size(); ++i)
    if (times.collective_ended_s[i] > times.collective_began_s[i])
      all.push_back({true, collectives[i], times.collective_began_s[i], times.collective_ended_s[i]});
  return all;
}

SpanSubject moved(const CostModel& c, std::size_t i, double bytes) {
  return {.bytes = static_cast<std::int64_t>(bytes), .axis = c.axes[i].name};
}

void add_span(Prediction& p, int row, Activity activity, const std::string& name, double begin_s,
              double end_s, const SpanSubject& subject) {
  if (end_s > begin_s) p.timeline.push_back({row, false, activity, name, begin_s, end_s, subject});
}

void add_communication(Prediction& p, int row, double begin_s, const std::vector<Communication>& all) {
  for (const Communication& x : all)
    p.timeline.push_back({row, x.beside, Activity::communication, x.what.name, begin_s + x.begin_s,
                          begin_s + x.end_s, x.what.subject});
}

double add_pass(Prediction& p, int row, Activity activity, const std::string& name, double begin_s,
                const PassCost& pass) {
  const double end_s = begin_s + pass.computing_s + pass.exposed();
  add_span(p, row, activity, name, begin_s, end_s);
  add_communication(p, row, begin_s, pass.communication);
  return end_s;
}

namespace {

// Calls f for everything that the blocks and the loss send in all passes over n samples.
void each_sent(const CostModel& c, double n,
               const std::function<void(const LayerCollectives& sent, double bytes)>& f) {
  const auto of = [&](const BlockProfile& b) {
    for (const auto* const sent : {&b.layers_forward, &b.layers_backward})
      for (const LayerCollectives& s : *sent) f(s, s.bytes(n));
  };
  for (const BlockProfile& b : c.profile.blocks) of(b);
  of(c.profile.loss);
}

}  // namespace

void add_layers(Prediction& p, const CostModel& c) {
  const int size = c.devices_of_sample();
  double stages = 1;
  for (const PlannedAxis& a : c.axes)
    if (!a.division.schedule.empty()) stages = a.size;
  const auto cost_of = [&](const LayerCollectives& sent) -> AxisCost& {
    return *std::find_if(p.axes.begin(), p.axes.end(),
                         [&](const AxisCost& a) { return a.axis == sent.axis; });
  };
  const std::vector<double> samples = c.samples_per_device();
  for (std::size_t r = 0; r < samples.size(); ++r) {
    double parts = 1;
    for (const PlannedAxis& a : c.axes)
      if (!a.division.schedule.empty())
        parts = static_cast<double>(chunk_sizes(static_cast<std::int64_t>(samples[r]),
                                                static_cast<std::size_t>(c.setup.micro_batches))
                                        .size());
    const double n = samples[r] / parts;
    each_sent(c, n, [&](const LayerCollectives& sent, double bytes) {
      AxisCost& cost = cost_of(sent);
      cost.bytes_sent += size * parts * bytes;
      // The first device has the most samples, so it decides how long the step takes.
      if (r == 0) cost.exposed_s += sent.seconds(c.axes[c.axis_of(sent)].costs, n) * parts / stages;
    });
    if (r > 0) continue;
    const double forward_s = forward_times(c, c.all_blocks(), n, true, 1).layers_sum() * parts / stages,
                 backward_s = backward_times(c, c.all_blocks(), n, true, 1).layers_sum() * parts / stages;
    p.breakdown.forward_s -= forward_s;
    p.breakdown.backward_s -= backward_s;
    p.breakdown.exposed_comm_s += forward_s + backward_s;
  }
  const std::vector<MemoryItems> of_parts = std::exchange(p.memory, {});
  for (const MemoryItems& m : of_parts) p.memory.insert(p.memory.end(), static_cast<std::size_t>(size), m);
  p.memory_device *= size;
}

void set_axes(Prediction& p, const CostModel& c, const std::vector<double>& exposed_s,
              const std::vector<double>& bytes_sent) {
  for (std::size_t i = c.axes.size(); i-- > 0;) {
    const PlannedAxis& axis = c.axes[i];
    const StepDivision& d = axis.division;
    const auto same =
        std::find_if(p.axes.begin(), p.axes.end(), [&](const AxisCost& a) { return a.axis == axis.name; });
    if (same != p.axes.end()) {
      same->bytes_sent += bytes_sent[i];
      same->exposed_s += exposed_s[i];
    } else if (d.sum != StepDivision::Sum::none || !d.copies || d.layers) {
      p.axes.push_back({axis.name, axis.size, bytes_sent[i], exposed_s[i]});
    }
  }
}

}  // namespace tapestry::distributed::planner
