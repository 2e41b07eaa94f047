// Predictions for the modes that split the model into one stage per device.
#include <algorithm>
#include <tuple>
#include <utility>

#include "tapestry/core/error.h"
#include "tapestry/distributed/planner/internal/peak_memory.h"
#include "tapestry/distributed/planner/internal/predictors.h"

namespace tapestry::distributed::planner {

namespace {

std::vector<BlockRange> stages_of(const CostModel& c) {
  std::vector<BlockRange> stages;
  std::size_t begin = 0;
  for (const int count : c.setup.split) {
    check(count >= 1, "[predict] the split has a stage of ", count, " blocks; give each stage at least one");
    stages.push_back({begin, begin + static_cast<std::size_t>(count)});
    begin = stages.back().end;
  }
  check(begin == c.count() && stages.size() == static_cast<std::size_t>(c.devices()),
        "[predict] the split has ", stages.size(), " stages with ", begin, " blocks; the model has ",
        c.count(), " blocks, for ", c.devices(), " devices");
  return stages;
}

std::vector<MemoryItems> memory_per_stage(const CostModel& c, const std::vector<BlockRange>& stages,
                                          const std::vector<double>& samples,
                                          const std::vector<std::vector<Action>>& actions,
                                          bool is_pipeline = false, bool zero_bubble = false) {
  std::vector<MemoryItems> memory;
  for (std::size_t s = 0; s < stages.size(); ++s) {
    const bool first = s == 0, last = s + 1 == stages.size();
    memory.push_back(peak_memory(c, {.range = stages[s],
                                     .samples = samples,
                                     .actions = actions[s],
                                     .data = (first ? c.profile.input_sample_bytes * c.batch() : 0) +
                                             (last ? c.profile.target_sample_bytes * c.batch() : 0),
                                     .has_loss = last,
                                     .keeps_input = !first,
                                     .is_stage = is_pipeline,
                                     .zero_bubble = zero_bubble}));
  }
  return memory;
}

// All devices run the optimizer on their stages at once.
struct Update {
  double longest = 0, sum = 0;
};
Update update_of(const CostModel& c, const std::vector<BlockRange>& stages) {
  Update update;
  const double slowdown = stages.size() > 1 ? c.profile.contention.update : 1;
  for (const BlockRange& stage : stages) {
    update.sum += slowdown * c.update(stage);
    update.longest = std::max(update.longest, slowdown * c.update(stage));
  }
  return update;
}

// Divides the sums over the devices by the number of devices. The part of the step that no item accounts for
// becomes idle time.
void fill_breakdown(Prediction& p, double devices, double forward, double backward, double copies,
                    double update, double step) {
  p.breakdown = {.forward_s = forward / devices,
                 .backward_s = backward / devices,
                 .exposed_comm_s = copies / devices,
                 .update_s = update / devices,
                 .idle_s = step - (forward + backward + copies + update) / devices};
}

// The mean cost of a micro-batch without contention, from the sums over the stage's blocks. All micro-batches
// but the first add to existing gradients.
StageCost uncontended_cost(const CostModel& c, const BlockRange& stage, double n, bool zero_bubble) {
  const double m = c.setup.micro_batches, accumulating = (m - 1) / m;
  const bool first = stage.begin == 0, last = stage.end == c.count();
  StageCost cost{.forward = c.forward(stage, n), .backward = 0, .weights = 0};
  if (zero_bubble && !first) {
    cost.backward = c.sum(stage, [](const BlockProfile& b) { return b.input_grad_s; });
    cost.weights = c.sum(stage, [&](const BlockProfile& b) {
      return b.weight_grad_s + accumulating * (b.weight_grad_accumulate_s - b.weight_grad_s);
    });
  } else {
    const double accumulate = c.sum(stage, [](const BlockProfile& b) { return b.accumulate_s; });
    cost.backward = c.backward(stage, n) + accumulating * accumulate;
  }
  if (last) {
    cost.forward += c.profile.loss.forward_s.at(n);
    cost.backward += c.profile.loss.backward_s.at(n);
  }
  // No stage waits for the input gradients of the first stage, so its whole backward can be deferred.
  if (zero_bubble && first) cost.weights = std::exchange(cost.backward, 0);
  return cost;
}

// Per device: the mean fraction of the other devices that are busy while this device is busy.
std::vector<double> mean_concurrency(const Simulation& simulation) {
  const std::size_t count = simulation.devices.size();
  std::vector<double> busy(count), with_others(count);
  std::vector<std::tuple<double, int, std::size_t>> changes;  // (time, +1 or -1, device)
  for (std::size_t d = 0; d < count; ++d)
    for (const TimedAction& t : simulation.devices[d]) {
      changes.emplace_back(t.begin, 1, d);
      changes.emplace_back(t.end, -1, d);
    }
  std::sort(changes.begin(), changes.end());
  std::vector<int> is_busy(count);
  double now = 0;
  for (const auto& [time, change, device] : changes) {
    const auto busy_devices = static_cast<double>(std::count(is_busy.begin(), is_busy.end(), 1));
    for (std::size_t d = 0; d < count; ++d) {
      if (is_busy[d] == 0) continue;
      busy[d] += time - now;
      with_others[d] += (time - now) * (busy_devices - 1);
    }
    now = time;
    is_busy[device] += change;
  }
  for (std::size_t d = 0; d < count; ++d)
    with_others[d] = count > 1 && busy[d] > 0 ? with_others[d] / busy[d] / static_cast<double>(count - 1) : 0;
  return with_others;
}

Prediction predict_one_stage_at_a_time(const CostModel& c) {
  Prediction p;
  const std::vector<BlockRange> stages = stages_of(c);
  const double n = c.batch();
  double copies = 0;
  for (std::size_t s = 1; s < stages.size(); ++s)
    copies += 2 * c.link.copy.time(c.input_bytes(stages[s].begin, n));
  const double forward = c.forward(c.all_blocks(), n) + c.profile.loss.forward_s.at(n);
  const double backward = c.backward(c.all_blocks(), n) + c.profile.loss.backward_s.at(n);
  const Update update = update_of(c, stages);
  fill_breakdown(p, c.devices(), forward, backward, copies, update.sum,
                 forward + backward + copies + update.longest);
  p.memory = memory_per_stage(c, stages, {n}, std::vector(stages.size(), kOnePass));
  return p;
}

Prediction predict_pipeline(const CostModel& c, Schedule schedule) {
  Prediction p;
  const std::vector<BlockRange> stages = stages_of(c);
  const int m = c.setup.micro_batches, count = static_cast<int>(stages.size());
  check(m >= 1 && m <= c.setup.batch_size, "[predict] ", m, " micro-batches for a batch of ",
        c.setup.batch_size, " samples; use at least 1 and at most as many as samples");
  const double n = c.batch() / m;
  const bool zero_bubble = schedule == Schedule::zero_bubble;
  const auto actions = schedule_actions(schedule, count, m);

  SimulationOptions options;
  double copies = 0;
  std::vector<StageContention> contention;
  if (!zero_bubble) contention = c.profile.stages;
  std::vector<StageCost> uncontended, receive(stages.size(), {0, 0, 0});
  for (std::size_t s = 0; s < stages.size(); ++s) {
    uncontended.push_back(uncontended_cost(c, stages[s], n, zero_bubble));
    if (zero_bubble && s < c.profile.zero_bubble_stages.size()) {
      const ZeroBubbleStage& measured = c.profile.zero_bubble_stages[s];
      uncontended[s].backward = measured.input_grad_s;
      uncontended[s].weights = measured.weight_grad_s +
                               (m - 1.0) / m * (measured.weight_grad_accumulate_s - measured.weight_grad_s);
      contention.push_back(measured.contention);
    }
    const double input = s > 0 ? c.link.copy.time(c.input_bytes(stages[s].begin, n)) : 0;
    const double gradient = s + 1 < stages.size() ? c.link.copy.time(c.input_bytes(stages[s].end, n)) : 0;
    if (c.on_gpus()) {
      options.transfer = std::max({options.transfer, input, gradient});
    } else {  // on the CPU, the receiving stage's own thread copies
      copies += m * (input + gradient);
      receive[s] = {.forward = input, .backward = gradient, .weights = 0};
    }
  }
  // The slowdown of a stage depends on how many other stages are busy, which in turn depends on the slowdown.
  // So both are iterated to a fixed point, from the slowdown at which all other stages are busy.
  std::vector<StageCost> cost = uncontended;
  std::vector<double> concurrency(stages.size(), 1);
  Simulation simulation;
  for (int iteration = 0; iteration < 8; ++iteration) {
    options.costs.clear();
    for (std::size_t s = 0; s < stages.size(); ++s) {
      const StageContention slowdown = s < contention.size() ? contention[s] : StageContention();
      const auto contended = [&](double time, double factor) {
        return time * (1 + (factor - 1) * concurrency[s]);
      };
      cost[s] = {contended(uncontended[s].forward, slowdown.forward),
                 contended(uncontended[s].backward, slowdown.backward),
                 contended(uncontended[s].weights, slowdown.weights)};
      options.costs.push_back(
          {cost[s].forward + receive[s].forward, cost[s].backward + receive[s].backward, cost[s].weights});
    }
    simulation = simulate(actions, options);
    concurrency = mean_concurrency(simulation);
  }
  double forward = 0, backward = 0;
  for (const StageCost& stage : cost) {
    forward += m * stage.forward;
    backward += m * (stage.backward + stage.weights);
  }
  const Update update = update_of(c, stages);
  fill_breakdown(p, c.devices(), forward, backward, copies, update.sum,
                 simulation.total + c.profile.dispatch_s + update.longest);
  const auto sizes = chunk_sizes(c.setup.batch_size, static_cast<std::size_t>(m));
  p.memory = memory_per_stage(c, stages, {sizes.begin(), sizes.end()}, actions, true, zero_bubble);
  return p;
}

}  // namespace

Prediction predict_stages(const CostModel& c) {
  const std::string& name = c.axes.at(0).division.schedule;
  for (const Schedule schedule : {Schedule::gpipe, Schedule::one_f_one_b, Schedule::zero_bubble})
    if (name == schedule_name(schedule)) return predict_pipeline(c, schedule);
  return predict_one_stage_at_a_time(c);
}

}  // namespace tapestry::distributed::planner
