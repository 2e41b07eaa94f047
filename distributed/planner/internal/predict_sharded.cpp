// Predictions for fully_shard (Zhao et al., "PyTorch FSDP: experiences on scaling fully sharded data
// parallel", 2023). Several replicas of a divided model add the parts of gradients that a device keeps,
// before the next unit is divided.
#include "tapestry/distributed/planner/internal/peak_memory.h"
#include "tapestry/distributed/planner/internal/predictors.h"
#include "tapestry/distributed/planner/internal/sharded_step.h"

namespace tapestry::distributed::planner {

ShardedStep::ShardedStep(const CostModel& c, double n) {
  const Contention& slowdown = c.collectives().contention;
  const std::size_t count = c.count();
  const auto at = [](std::size_t i) { return static_cast<int>(i); };
  const auto post = [&](std::size_t k, bool gathers, int after, bool at_begin) {
    const std::int64_t bytes = c.profile.blocks[k].all_parameter_bytes();
    const auto all = static_cast<double>(bytes);
    collectives.push_back(
        {.seconds = gathers ? c.gather_s(all) : c.reduce_s(all), .after = after, .at_begin = at_begin});
    units.push_back({gathers, k, bytes});
    return at(collectives.size()) - 1;
  };
  for (std::size_t k = 0; k < count; ++k)
    phases.push_back(
        {slowdown.forward * c.profile.blocks[k].forward_s.at(n), post(k, true, at(k) - 1, true)});
  loss = phases.size();
  phases.push_back({slowdown.forward * c.profile.loss.forward_s.at(n)});
  phases.push_back({slowdown.backward * c.profile.loss.backward_s.at(n)});
  std::vector<int> gather_of(count);
  const auto phase_of = [&](std::size_t k) { return at(loss + 1 + count - k); };
  gather_of[count - 1] = post(count - 1, true, at(loss) + 1, false);
  if (count > 1) gather_of[count - 2] = post(count - 2, true, phase_of(count - 1), true);
  for (std::size_t k = count; k-- > 0;) {
    post(k, false, phase_of(k), false);
    if (k >= 2) gather_of[k - 2] = post(k - 2, true, phase_of(k - 1), true);
  }
  for (std::size_t k = count; k-- > 0;)
    phases.push_back({slowdown.backward * c.profile.blocks[k].backward_s.at(n), gather_of[k]});
}

double ShardedStep::divided_after(const TwoQueues& times, std::size_t k) const {
  const std::size_t next = 2 * loss + 2 - k;  // the phase of the next block, k - 1
  for (std::size_t i = 0; k > 0 && i < units.size(); ++i)
    if (!units[i].gathers && units[i].block == k && times.computing_s[next] > 0)
      return 1 + (times.collective_ended_s[i] - times.phase_ended_s[next]) / times.computing_s[next];
  return 1;
}

Prediction predict_sharded_models(const CostModel& c) {
  Prediction p;
  const int shards = c.parts(&StepDivision::divides_model);
  const std::vector<double> samples = c.samples_per_device();
  const ShardedStep step(c, samples[0]);
  const TwoQueues times = simulate(step.phases, step.collectives, c.collectives());
  for (std::size_t i = 0; i < times.computing_s.size(); ++i) {
    (i <= step.loss ? p.breakdown.forward_s : p.breakdown.backward_s) += times.computing_s[i];
    p.breakdown.exposed_comm_s += times.waiting_s[i];
  }
  p.breakdown.exposed_comm_s += times.tail_s;
  p.breakdown.update_s = c.collectives().contention.update * c.update(c.all_blocks()) / shards;
  std::vector<double> divided_after;
  for (std::size_t k = 0; k < c.count(); ++k) divided_after.push_back(step.divided_after(times, k));
  for (const double n : samples)
    p.memory.push_back(peak_memory(c, {.range = c.all_blocks(),
                                       .samples = {n},
                                       .actions = kOnePass,
                                       .data = c.batch_bytes(n),
                                       .optimizer_share = 1.0 / shards,
                                       .sharded = shards,
                                       .divided_after = divided_after}));
  return p;
}

}  // namespace tapestry::distributed::planner
