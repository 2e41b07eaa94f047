#include "tapestry/distributed/planner/internal/passes.h"

#include <algorithm>
#include <numeric>

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

int zero_of(const CostModel& c) {
  const std::size_t i = c.dividing_axis();
  return i < c.axes.size() ? c.axes[i].division.zero : 0;
}

// The buckets in which parameters are gathered after an update, under ZeRO.
DdpBuckets gathered_buckets(const CostModel& c, BlockRange range) {
  if (zero_of(c) == 1) return zero1_buckets(c, range);
  return ddp_buckets(c, range, {std::vector<double>(range.end - range.begin), 0}, 1);
}

PassCost cost_of(const ShardedStep& step, const CostModel& c) {
  const StepQueues times = simulate(step.phases, step.collectives, c.interference());
  return {sum_of(times.computing_s), times.exposed_s, step.communication(c, times)};
}

std::vector<std::string> bucket_names(std::size_t count, const std::string& what) {
  std::vector<std::string> names;
  for (std::size_t i = 0; i < count; ++i) names.push_back(what + std::to_string(i));
  return names;
}

}  // namespace

double BlockTimes::sum() const { return sum_of(blocks_s) + loss_s; }

BlockTimes BlockTimes::scaled_to(double to) const {
  const double from = sum(), factor = from > 0 ? to / from : 0;
  BlockTimes scaled = *this;
  for (double& s : scaled.blocks_s) s *= factor;
  scaled.loss_s *= factor;
  return scaled;
}

BlockTimes forward_times(const CostModel& c, BlockRange range, double n, bool has_loss, double slowdown) {
  BlockTimes times;
  for (std::size_t k = range.begin; k < range.end; ++k)
    times.blocks_s.push_back(slowdown * c.profile.blocks[k].forward_s.at(n));
  if (has_loss) times.loss_s = slowdown * c.profile.loss.forward_s.at(n);
  return times;
}

BlockTimes backward_times(const CostModel& c, BlockRange range, double n, bool has_loss, double slowdown) {
  BlockTimes times;
  for (std::size_t k = range.begin; k < range.end; ++k)
    times.blocks_s.push_back(slowdown * c.profile.blocks[k].backward_s.at(n));
  if (has_loss) times.loss_s = slowdown * c.profile.loss.backward_s.at(n);
  return times;
}

double PassCost::exposed() const { return sum_of(exposed_s); }

DdpBuckets ddp_buckets(const CostModel& c, BlockRange range, const BlockTimes& times, double slowdown) {
  std::vector<BucketParameter> parameters;
  std::vector<double> ready_of;  // per parameter, in seconds of computing
  double compute = times.loss_s;
  for (std::size_t k = range.end; k-- > range.begin;) {
    const BlockProfile& block = c.profile.blocks[k];
    compute += times.blocks_s[k - range.begin];
    compute += slowdown * block.bucket_copy_s;
    for (std::size_t i = block.parameter_bytes.size(); i-- > 0;) {
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

DdpBuckets zero1_buckets(const CostModel& c, BlockRange range) {
  std::vector<BucketParameter> parameters;
  for (std::size_t k = range.begin; k < range.end; ++k)
    for (const std::int64_t bytes : c.profile.blocks[k].parameter_bytes)
      parameters.push_back({static_cast<std::size_t>(bytes), DType::f32, {}});
  return assigned(parameters, c.setup.bucket_cap_bytes, c.setup.bucket_cap_bytes);
}

PassCost backward_with_buckets(const CostModel& c, BlockRange range, const BlockTimes& times,
                               double slowdown) {
  const DdpBuckets buckets = ddp_buckets(c, range, times, slowdown);
  std::vector<double> reduce_s(buckets.bytes.size());
  std::size_t axis = 0;
  for (std::size_t b = 0; b < buckets.bytes.size(); ++b)
    c.each_sum(buckets.bytes[b], [&](std::size_t i, double bytes, bool divides) {
      reduce_s[b] += c.reduce_s(i, bytes, divides);
      axis = i;
    });
  const StepQueues o = overlap(buckets.ready_s, reduce_s, buckets.compute_s, c.axes[axis].costs);
  PassCost cost{sum_of(o.computing_s), std::vector<double>(c.axes.size()),
                communication_of(o, {}, bucket_names(reduce_s.size(), "bucket "))};
  cost.exposed_s[axis] = o.tail_s;
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
  PassCost cost{slowdown * c.update(range) / c.parts(&StepDivision::divides_optimizer),
                std::vector<double>(c.axes.size())};
  if (zero_of(c) == 0) return cost;
  const double all_bytes = c.parameter_bytes(range);
  const std::size_t axis = c.dividing_axis();
  std::vector<ComputePhase> updates;
  std::vector<Collective> gathers;
  for (const double bytes : gathered_buckets(c, range).bytes) {
    updates.push_back({cost.computing_s * bytes / all_bytes});
    gathers.push_back(
        {.seconds = c.gather_s(bytes), .after = static_cast<int>(gathers.size()), .queue = axis});
  }
  const StepQueues step = simulate(updates, gathers, c.interference());
  return {sum_of(step.computing_s), step.exposed_s,
          communication_of(step, updates, bucket_names(gathers.size(), "all_gather of bucket "))};
}

MemoryItems with_update(const CostModel& c, BlockRange range, const MemoryItems& peak) {
  if (zero_of(c) == 0) return peak;
  const int parts = c.parts(&StepDivision::divides_optimizer);
  // While the parameters are gathered, at most two whole buckets exist besides, with this rank's parts of
  // them.
  MemoryItems updating = peak;
  updating.activations = updating.gradients = 0;
  updating.workspace = parts > 1 ? gathered_buckets(c, range).two_largest() * (1 + 1.0 / parts) : 0;
  if (zero_of(c) == 2) updating.buckets = c.parameter_bytes(range) / parts;
  return updating.total() > peak.total() ? updating : peak;
}

std::vector<double> sent_by_axis(const CostModel& c, BlockRange range, int gathers) {
  std::vector<double> sent(c.axes.size());
  const double all_bytes = c.parameter_bytes(range);
  const std::size_t dividing = c.dividing_axis();
  if (dividing < c.axes.size())
    sent[dividing] += (zero_of(c) > 0 ? 1 : gathers) * c.sent_bytes(dividing, all_bytes);
  c.each_sum(all_bytes, [&](std::size_t i, double bytes, bool divides) {
    sent[i] += (divides ? 1 : 2) * c.sent_bytes(i, bytes);
  });
  return sent;
}

std::vector<Communication> communication_of(const StepQueues& times, std::span<const ComputePhase> phases,
                                            const std::vector<std::string>& names) {
  std::vector<Communication> all;
  double now = 0;
  for (std::size_t i = 0; i < times.phase_ended_s.size(); ++i) {
    if (times.waiting_s[i] > 0)
      all.push_back({false, "wait for " + names[static_cast<std::size_t>(phases[i].needs)], now,
                     now + times.waiting_s[i]});
    now = times.phase_ended_s[i];
  }
  if (times.tail_s > 0) all.push_back({false, "wait for " + names.back(), now, now + times.tail_s});
  for (std::size_t i = 0; i < names.size(); ++i)
    if (times.collective_ended_s[i] > times.collective_began_s[i])
      all.push_back({true, names[i], times.collective_began_s[i], times.collective_ended_s[i]});
  return all;
}

void add_span(Prediction& p, int row, Activity activity, const std::string& name, double begin_s,
              double end_s) {
  if (end_s > begin_s) p.timeline.push_back({row, false, activity, name, begin_s, end_s});
}

void add_communication(Prediction& p, int row, double begin_s, const std::vector<Communication>& all) {
  for (const Communication& x : all)
    p.timeline.push_back(
        {row, x.beside, Activity::communication, x.name, begin_s + x.begin_s, begin_s + x.end_s});
}

double add_pass(Prediction& p, int row, Activity activity, const std::string& name, double begin_s,
                const PassCost& pass) {
  const double end_s = begin_s + pass.computing_s + pass.exposed();
  add_span(p, row, activity, name, begin_s, end_s);
  add_communication(p, row, begin_s, pass.communication);
  return end_s;
}

void set_axes(Prediction& p, const CostModel& c, const std::vector<double>& exposed_s,
              const std::vector<double>& bytes_sent) {
  for (std::size_t i = c.axes.size(); i-- > 0;)
    p.axes.push_back({c.axes[i].name, c.axes[i].size, bytes_sent[i], exposed_s[i]});
}

}  // namespace tapestry::distributed::planner
