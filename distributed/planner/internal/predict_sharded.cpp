// Predictions for the modes that divide a model's state among the ranks: ZeRO (Rajbhandari et al., "ZeRO:
// memory optimizations toward training trillion parameter models", 2020) and fully_shard (Zhao et al.,
// "PyTorch FSDP: experiences on scaling fully sharded data parallel", 2023).
#include <numeric>

#include "tapestry/distributed/planner/internal/ddp_buckets.h"
#include "tapestry/distributed/planner/internal/peak_memory.h"
#include "tapestry/distributed/planner/internal/predictors.h"
#include "tapestry/distributed/planner/internal/sharded_step.h"

namespace tapestry::distributed::planner {

ShardedStep::ShardedStep(const CostModel& c, double n) {
  const AllReduce& costs = c.link.ranks;
  const std::size_t count = c.count();
  const auto at = [](std::size_t i) { return static_cast<int>(i); };
  const auto post = [&](std::size_t k, bool gathers, int after, bool at_begin) {
    const std::int64_t bytes = c.profile.blocks[k].all_parameter_bytes();
    const auto all = static_cast<double>(bytes);
    collectives.push_back(
        {.seconds = gathers ? costs.gather_s(all, c.devices()) : costs.scatter_s(all, c.devices()),
         .after = after,
         .at_begin = at_begin});
    units.push_back({gathers, k, bytes});
    return at(collectives.size()) - 1;
  };
  for (std::size_t k = 0; k < count; ++k)
    phases.push_back(
        {costs.contention.forward * c.profile.blocks[k].forward_s.at(n), post(k, true, at(k) - 1, true)});
  loss = phases.size();
  phases.push_back({costs.contention.forward * c.profile.loss.forward_s.at(n)});
  phases.push_back({costs.contention.backward * c.profile.loss.backward_s.at(n)});
  std::vector<int> gather_of(count);
  const auto phase_of = [&](std::size_t k) { return at(loss + 1 + count - k); };
  gather_of[count - 1] = post(count - 1, true, at(loss) + 1, false);
  if (count > 1) gather_of[count - 2] = post(count - 2, true, phase_of(count - 1), true);
  for (std::size_t k = count; k-- > 0;) {
    post(k, false, phase_of(k), false);
    if (k >= 2) gather_of[k - 2] = post(k - 2, true, phase_of(k - 1), true);
  }
  for (std::size_t k = count; k-- > 0;)
    phases.push_back({costs.contention.backward * c.profile.blocks[k].backward_s.at(n), gather_of[k]});
}

double ShardedStep::divided_after(const TwoQueues& times, std::size_t k) const {
  const std::size_t next = 2 * loss + 2 - k;  // the phase of the next block, k - 1
  for (std::size_t i = 0; k > 0 && i < units.size(); ++i)
    if (!units[i].gathers && units[i].block == k && times.computing_s[next] > 0)
      return 1 + (times.collective_ended_s[i] - times.phase_ended_s[next]) / times.computing_s[next];
  return 1;
}

Prediction predict_fully_sharded(const CostModel& c) {
  Prediction p;
  const std::vector<double> samples = c.samples_per_device();
  const ShardedStep step(c, samples[0]);
  const TwoQueues times = simulate(step.phases, step.collectives, c.link.ranks);
  for (std::size_t i = 0; i < times.computing_s.size(); ++i) {
    (i <= step.loss ? p.breakdown.forward_s : p.breakdown.backward_s) += times.computing_s[i];
    p.breakdown.exposed_comm_s += times.waiting_s[i];
  }
  p.breakdown.exposed_comm_s += times.tail_s;
  p.breakdown.update_s = c.link.ranks.contention.update * c.update(c.all_blocks()) / c.devices();
  std::vector<double> divided_after;
  for (std::size_t k = 0; k < c.count(); ++k) divided_after.push_back(step.divided_after(times, k));
  for (const double n : samples)
    p.memory.push_back(peak_memory(c, {.range = c.all_blocks(),
                                       .samples = {n},
                                       .actions = kOnePass,
                                       .data = c.batch_bytes(n),
                                       .optimizer_share = 1.0 / c.devices(),
                                       .sharded = c.devices(),
                                       .divided_after = divided_after}));
  return p;
}

// Stage 1 averages whole gradients behind backward, as DDP does. Stage 2 leaves each rank with its part of
// the mean, which is half of the communication. Each rank updates its part of a bucket, and gathers the whole
// bucket while it updates the next one.
Prediction predict_zero(const CostModel& c, int stage) {
  Prediction p;
  const std::vector<double> samples = c.samples_per_device();
  const AllReduce& costs = c.link.ranks;
  const double n = samples[0];
  p.breakdown.forward_s =
      costs.contention.forward * (c.forward(c.all_blocks(), n) + c.profile.loss.forward_s.at(n));
  const DdpBuckets buckets = ddp_buckets(c, n, costs.contention.backward);
  const double update_s = costs.contention.update * c.update(c.all_blocks()) / c.devices(),
               all_bytes = c.parameter_bytes(c.all_blocks());
  const DdpBuckets gathered = stage == 1 ? zero1_buckets(c) : buckets;
  std::vector<double> reduce_s;
  std::vector<ComputePhase> updates;
  std::vector<Collective> gathers;
  for (const double bytes : buckets.bytes)
    reduce_s.push_back(stage == 1 ? ring_time(costs.message, bytes, c.devices())
                                  : costs.scatter_s(bytes, c.devices()));
  for (std::size_t i = 0; i < gathered.bytes.size(); ++i) {
    const double bytes = gathered.bytes[i];
    updates.push_back({update_s * bytes / all_bytes});
    gathers.push_back({.seconds = costs.gather_s(bytes, c.devices()), .after = static_cast<int>(i)});
  }
  const Overlap o = overlap(buckets.ready_s, reduce_s, buckets.compute_s, costs);
  const TwoQueues step = simulate(updates, gathers, costs);
  p.breakdown.backward_s = o.backward_s;
  p.breakdown.update_s = std::accumulate(step.computing_s.begin(), step.computing_s.end(), 0.0);
  p.breakdown.exposed_comm_s = o.exposed_s + step.tail_s;
  for (const double of_rank : samples) {
    const MemoryItems peak = peak_memory(c, {.range = c.all_blocks(),
                                             .samples = {of_rank},
                                             .actions = kOnePass,
                                             .data = c.batch_bytes(of_rank),
                                             .has_buckets = true,
                                             .optimizer_share = 1.0 / c.devices(),
                                             .divided_buckets = stage == 2 ? c.devices() : 1});
    const double parts = all_bytes / c.devices();
    // While the parameters are gathered, at most two whole buckets exist besides, with this rank's parts of
    // them.
    MemoryItems updating = peak;
    updating.activations = 0;
    updating.workspace = c.devices() > 1 ? gathered.two_largest() * (1 + 1.0 / c.devices()) : 0;
    if (stage == 2) updating.buckets = parts;
    p.memory.push_back(updating.total() > peak.total() ? updating : peak);
  }
  return p;
}

}  // namespace tapestry::distributed::planner
