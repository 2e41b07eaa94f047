// Predictions for fully_shard (Zhao et al., "PyTorch FSDP: experiences on scaling fully sharded data
// parallel", 2023). Several replicas of a divided model add the parts of gradients that a device keeps while
// the next units are divided.
#include "tapestry/distributed/planner/internal/passes.h"
#include "tapestry/distributed/planner/internal/peak_memory.h"
#include "tapestry/distributed/planner/internal/predictors.h"
#include "tapestry/distributed/planner/internal/sharded_step.h"

namespace tapestry::distributed::planner {

int ShardedStep::post(const CostModel& c, std::size_t k, int after, bool at_begin) {
  const std::int64_t bytes = c.profile.blocks[k].all_parameter_bytes();
  collectives.push_back({.seconds = c.gather_s(shard_, static_cast<double>(bytes)),
                         .after = after,
                         .at_begin = at_begin,
                         .queue = shard_});
  units.push_back({true, k, bytes, shard_});
  return static_cast<int>(collectives.size()) - 1;
}

void ShardedStep::add(const CostModel& c, std::size_t k, int after) {
  int follows = -1;
  const BlockProfile& block = c.profile.blocks[k];
  const auto all = static_cast<double>(block.all_parameter_bytes()),
             parts = static_cast<double>(block.part_bytes());
  c.each_sum(all, parts, [&](std::size_t i, double bytes, bool divides) {
    collectives.push_back(
        {.seconds = c.reduce_s(i, bytes, divides), .after = after, .queue = i, .follows = follows});
    units.push_back({false, k, static_cast<std::int64_t>(bytes), i});
    follows = static_cast<int>(collectives.size()) - 1;
  });
}

ShardedStep::ShardedStep(const CostModel& c, BlockRange range, const BlockTimes* forward,
                         const BlockTimes* backward, const UnitCollectives& with)
    : range_(range), shard_(c.dividing_axis()) {
  const std::size_t count = range.end - range.begin;
  const auto at = [](std::size_t i) { return static_cast<int>(i); };
  const auto add_phase = [&](double seconds, int needs, double waits, const BlockProfile& b,
                             const BlockTimes& pass) {
    if (waits > 0) layer_waits.push_back({phases.size(), &b, &pass == backward, pass.samples});
    phases.push_back({seconds, needs});
  };
  if (forward) {
    for (std::size_t k = 0; k < count; ++k)
      add_phase(forward->blocks_s[k], with.gathers ? post(c, range.begin + k, at(k) - 1, true) : -1,
                forward->layers_s[k], c.profile.blocks[range.begin + k], *forward);
    add_phase(forward->loss_s, -1, forward->loss_layers_s, c.profile.loss, *forward);
  }
  forward_end = phases.size();
  if (!backward) return;
  add_phase(backward->loss_s, -1, backward->loss_layers_s, c.profile.loss, *backward);
  std::vector<int> gather_of(count, -1);
  const auto phase_of = [&](std::size_t k) { return at(forward_end + count - k); };
  const auto gather = [&](std::size_t k, int after, bool at_begin) {
    if (with.gathers) gather_of[k] = post(c, range.begin + k, after, at_begin);
  };
  gather(count - 1, at(forward_end), false);
  if (count > 1) gather(count - 2, phase_of(count - 1), true);
  for (std::size_t k = count; k-- > 0;) {
    if (with.divides) add(c, range.begin + k, phase_of(k));
    if (k >= 2) gather(k - 2, phase_of(k - 1), true);
  }
  for (std::size_t k = count; k-- > 0;)
    add_phase(backward->blocks_s[k], gather_of[k], backward->layers_s[k], c.profile.blocks[range.begin + k],
              *backward);
}

double ShardedStep::divided_after(const StepQueues& times, std::size_t k) const {
  const std::size_t next = forward_end + 1 + range_.end - k;  // the phase of the next block, k - 1
  for (std::size_t i = 0; k > range_.begin && i < units.size(); ++i)
    if (!units[i].gathers && units[i].axis == shard_ && units[i].block == k && times.computing_s[next] > 0)
      return 1 + (times.collective_ended_s[i] - times.phase_ended_s[next]) / times.computing_s[next];
  return 1;
}

std::vector<Communication> ShardedStep::communication(const CostModel& c, const StepQueues& times) const {
  std::vector<Collected> names;
  for (const Unit& u : units) {
    const std::string& name = c.profile.blocks[u.block].name;
    const char* const what = u.gathers ? " all_gather" : u.axis == shard_ ? " reduce_scatter" : " all_reduce";
    names.push_back({name + what, moved(c, u.axis, static_cast<double>(u.bytes))});
    names.back().subject.module = name;
  }
  std::vector<Communication> all = communication_of(times, phases, names);
  for (const LayerWait& w : layer_waits)
    for (Communication& wait : block_waits(c, *w.block, w.backward, w.samples, times.phase_ended_s[w.phase]))
      all.push_back(std::move(wait));
  return all;
}

Prediction predict_sharded_models(const CostModel& c) {
  Prediction p;
  const int shards = c.shards();
  const BlockRange all = c.all_blocks();
  const std::vector<double> samples = c.samples_per_device();
  const Contention& slowdown = c.collectives().contention;
  const BlockTimes forward = forward_times(c, all, samples[0], true, slowdown.forward),
                   backward = backward_times(c, all, samples[0], true, slowdown.backward);
  const ShardedStep step(c, all, &forward, &backward, {});
  const StepQueues times = simulate(step.phases, step.collectives, c.interference());
  for (std::size_t i = 0; i < times.computing_s.size(); ++i) {
    (i < step.forward_end ? p.breakdown.forward_s : p.breakdown.backward_s) += times.computing_s[i];
    p.breakdown.exposed_comm_s += times.waiting_s[i];
  }
  p.breakdown.exposed_comm_s += times.tail_s;
  p.breakdown.update_s = slowdown.update * c.update(all) / shards;
  std::vector<double> divided_after, sent = sent_by_axis(c, all, 2);
  // Beside replicas, this is the bound: the gradients exist until those of the next block have arrived.
  for (std::size_t k = 0; k < c.count(); ++k)
    divided_after.push_back(c.axes.size() > 1 ? 1 : step.divided_after(times, k));
  std::vector<HeldMemory> held;
  for (const double n : samples)
    p.memory.push_back(peak_memory(c, {.range = all,
                                       .samples = {n},
                                       .actions = kOnePass,
                                       .data = c.batch_bytes(n),
                                       .optimizer_share = 1.0 / shards,
                                       .sharded = shards,
                                       .divided_after = divided_after,
                                       .held = p.memory.empty() ? &held : nullptr}));
  for (double& bytes : sent) bytes *= c.devices();
  set_axes(p, c, times.exposed_s, sent);
  const double forward_end = times.phase_ended_s[step.forward_end - 1],
               end = times.phase_ended_s.back() + times.tail_s;
  keep_memory_over_time(p, 0, on_clock(held, {{0, forward_end}, {forward_end, end}}));
  add_span(p, 0, Activity::forward, "forward", 0, forward_end);
  add_span(p, 0, Activity::backward, "backward", forward_end, end);
  add_communication(p, 0, 0, step.communication(c, times));
  add_span(p, 0, Activity::optimizer, "update", end, end + p.breakdown.update_s);
  return p;
}

}  // namespace tapestry::distributed::planner
