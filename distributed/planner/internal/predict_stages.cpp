// Predictions for the modes that split the model into stages. Over ranks, a stage may have replicas that
// divide the batch, and these may divide the stage's parameters or its optimizer's state.
#include <algorithm>
#include <functional>
#include <tuple>
#include <utility>

#include "tapestry/core/error.h"
#include "tapestry/distributed/pipeline/internal/rank_messages.h"
#include "tapestry/distributed/planner/internal/passes.h"
#include "tapestry/distributed/planner/internal/peak_memory.h"
#include "tapestry/distributed/planner/internal/predictors.h"

namespace tapestry::distributed::planner {

namespace {

std::size_t stages_axis(const CostModel& c) {
  std::size_t i = 0;
  while (c.axes.at(i).division.schedule.empty()) ++i;
  return i;
}

std::vector<BlockRange> stages_of(const CostModel& c) {
  std::vector<BlockRange> stages;
  std::size_t begin = 0;
  for (const int count : c.setup.split) {
    check(count >= 1, "[predict] the split has a stage of ", count, " blocks; give each stage at least one");
    stages.push_back({begin, begin + static_cast<std::size_t>(count)});
    begin = stages.back().end;
  }
  const int needed = c.axes[stages_axis(c)].size;
  check(begin == c.count() && stages.size() == static_cast<std::size_t>(needed), "[predict] the split has ",
        stages.size(), " stages with ", begin, " blocks; the model has ", c.count(), " blocks, for ", needed,
        " stages");
  return stages;
}

// By stage, the actions of a replica with this number of micro-batches.
using Actions = std::function<std::vector<std::vector<Action>>(std::size_t micro_batches)>;

// Adds the memory of each device of each stage. `samples` has the samples of each micro-batch, by replica,
// and `times` the actions of the first replica of each stage.
void add_memory_of_stages(Prediction& p, const CostModel& c, const std::vector<BlockRange>& stages,
                          const std::vector<std::vector<double>>& samples, const Actions& actions,
                          const std::vector<ActionTimes>& times, bool is_pipeline = false,
                          bool zero_bubble = false) {
  const int shards = c.shards();
  const std::vector<double> divided_after(c.count(), 1);
  // The headers of the messages that a rank may have in flight.
  const double headers = is_pipeline && !c.one_process && stages.size() > 1
                             ? static_cast<double>((kMaxQueuedMessages + 1) * sizeof(MessageHeader))
                             : 0;
  for (std::size_t s = 0; s < stages.size(); ++s)
    for (const std::vector<double>& own : samples) {
      std::vector<HeldMemory> held;
      std::vector<HeldMemory>* const records = &own == samples.data() ? &held : nullptr;
      const bool first = s == 0, last = s + 1 == stages.size();
      double all = 0;
      for (const double n : own) all += n;
      const MemoryItems peak =
          peak_memory(c, {.range = stages[s],
                          .samples = own,
                          .actions = actions(own.size())[s],
                          .data = (first ? c.profile.input_sample_bytes * all : 0) +
                                  (last ? c.profile.target_sample_bytes * all : 0) + headers,
                          .has_loss = last,
                          .keeps_input = !first,
                          .is_stage = is_pipeline,
                          .has_buckets = c.adds_in_buckets(),
                          .zero_bubble = zero_bubble,
                          .optimizer_share = c.optimizer_share(stages[s]),
                          .sharded = shards,
                          .keeps_whole = shards > 1 && c.axes[c.dividing_axis()].division.keeps_whole,
                          .divided_after = divided_after,
                          .divides_buckets = c.divides_buckets(),
                          .held = records});
      p.memory.push_back(with_update(c, stages[s], peak, records));
      if (records) keep_memory_over_time(p, p.memory.size() - 1, on_clock(held, times[s]));
    }
}

// Divides the sums over the stages by their number. The part of the step that no item accounts for becomes
// idle time.
void fill_breakdown(Prediction& p, double stages, double forward, double backward, double exposed,
                    double update, double step) {
  p.breakdown = {.forward_s = forward / stages,
                 .backward_s = backward / stages,
                 .exposed_comm_s = exposed / stages,
                 .update_s = update / stages,
                 .idle_s = step - (forward + backward + exposed + update) / stages};
}

// The mean cost of one of m micro-batches without contention, from the sums over the stage's blocks. All
// micro-batches but the first add to existing gradients.
StageCost uncontended_cost(const CostModel& c, const BlockRange& stage, double n, double m,
                           bool zero_bubble) {
  const double accumulating = (m - 1) / m;
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
  const double slowdown = stages.size() > 1 ? c.profile.contention.update : 1;
  double longest = 0, sent = 0;
  for (const BlockRange& stage : stages) longest = std::max(longest, slowdown * c.update(stage));
  for (std::size_t s = 1; s < stages.size(); ++s) sent += 2 * c.input_bytes(stages[s].begin, n);
  fill_breakdown(p, c.devices(), forward, backward, copies, slowdown * c.update(c.all_blocks()),
                 forward + backward + copies + longest);
  set_axes(p, c, {p.breakdown.exposed_comm_s}, {sent});
  // A copy counts for the stage that receives it.
  p.rows = static_cast<int>(stages.size());
  double now = 0;
  const auto next = [&](std::size_t s, Activity activity, const char* name, double seconds,
                        const SpanSubject& subject = {}) {
    add_span(p, static_cast<int>(s), activity, name, now, now + seconds, subject);
    now += seconds;
  };
  const auto input = [&](std::size_t s) { return moved(c, 0, c.input_bytes(stages[s].begin, n)); };
  const auto copy_s = [&](std::size_t s) { return c.link.copy.time(c.input_bytes(stages[s].begin, n)); };
  std::vector<ActionTimes> times(stages.size());
  const auto computes = [&](std::size_t s, Activity activity, const char* name, double seconds) {
    times[s].emplace_back(now, now + seconds);
    next(s, activity, name, seconds);
  };
  for (std::size_t s = 0; s < stages.size(); ++s) {
    if (s > 0) next(s, Activity::communication, "copy of the activations", copy_s(s), input(s));
    const bool last = s + 1 == stages.size();
    computes(s, Activity::forward, "forward",
             c.forward(stages[s], n) + (last ? c.profile.loss.forward_s.at(n) : 0));
  }
  for (std::size_t s = stages.size(); s-- > 0;) {
    const bool last = s + 1 == stages.size();
    if (!last) next(s, Activity::communication, "copy of the gradients", copy_s(s + 1), input(s + 1));
    computes(s, Activity::backward, "backward",
             c.backward(stages[s], n) + (last ? c.profile.loss.backward_s.at(n) : 0));
  }
  for (std::size_t s = 0; s < stages.size(); ++s)
    add_span(p, static_cast<int>(s), Activity::optimizer, "update", now,
             now + slowdown * c.update(stages[s]));
  add_memory_of_stages(
      p, c, stages, {{n}}, [&](std::size_t) { return std::vector(stages.size(), kOnePass); }, times);
  return p;
}

// What predict_pipeline() computes before it simulates a pipeline: the times of its stages, which may have
// replicas.
class StageTimes {
 public:
  StageTimes(const CostModel& c, const std::vector<std::vector<Action>>& actions, double n, int m,
             bool zero_bubble)
      : c_(c), stages_(stages_of(c)), actions_(actions), n_(n), m_(m), zero_bubble_(zero_bubble) {
    for (const BlockRange& stage : stages_) {
      uncontended_.push_back(uncontended_cost(c, stage, n, m, zero_bubble));
      contention_.push_back(contention_of(uncontended_.size() - 1));
    }
  }
  const std::vector<BlockRange>& stages() const { return stages_; }

  // The costs if a stage computes beside `concurrency` of the other devices, with what its collectives add to
  // single actions.
  void set(const std::vector<double>& concurrency, SimulationOptions& options) {
    options.costs.clear();
    options.extra.clear();
    forward_s = backward_s = 0;
    communication.clear();
    exposed_s.assign(c_.axes.size(), 0);
    for (std::size_t s = 0; s < stages_.size(); ++s) {
      const auto contended = [&](double time, double factor) {
        return time * (1 + (factor - 1) * concurrency[s]);
      };
      const StageCost layers = layers_of(s);
      const StageCost cost = {contended(uncontended_[s].forward, contention_[s].forward) + layers.forward,
                              contended(uncontended_[s].backward, contention_[s].backward) + layers.backward,
                              contended(uncontended_[s].weights, contention_[s].weights) + layers.weights};
      options.costs.push_back(cost);
      options.extra.emplace_back(actions_[s].size());
      communication.emplace_back(actions_[s].size());
      forward_s += m_ * cost.forward;
      backward_s += m_ * (cost.backward + cost.weights);
      add_layer_waits(s, cost);
      add_collectives(s, cost, options.extra.back());
    }
  }

  // Sums over the stages; exposed_s is by axis.
  double forward_s = 0, backward_s = 0;
  std::vector<double> exposed_s;
  // By stage and action.
  std::vector<std::vector<std::vector<Communication>>> communication;

 private:
  bool is_measured(std::size_t stages) const { return c_.axes.size() == 1 && stages == stages_.size(); }
  StageContention contention_of(std::size_t s) {
    const Profile& profile = c_.profile;
    if (zero_bubble_ && is_measured(profile.zero_bubble_stages.size())) {
      const ZeroBubbleStage& measured = profile.zero_bubble_stages[s];
      uncontended_[s].backward = measured.input_grad_s;
      const double accumulating = (m_ - 1.0) / m_;
      uncontended_[s].weights = measured.weight_grad_s +
                                accumulating * (measured.weight_grad_accumulate_s - measured.weight_grad_s);
      return measured.contention;
    }
    if (!zero_bubble_ && is_measured(profile.stages.size())) return profile.stages[s];
    if (c_.one_process) return {};
    const Contention& of_ranks = c_.collectives().contention;
    return {of_ranks.forward, of_ranks.backward, of_ranks.backward};
  }

  bool has_loss(std::size_t s) const { return stages_[s].end == c_.count(); }
  // The waits of a micro-batch's divided layers. Those of backward are in the pass of the input gradients.
  StageCost layers_of(std::size_t s) const {
    StageCost waits = {forward_times(c_, stages_[s], n_, has_loss(s), 1).layers_sum(),
                       backward_times(c_, stages_[s], n_, has_loss(s), 1).layers_sum(), 0};
    if (zero_bubble_ && s == 0) waits.weights = std::exchange(waits.backward, 0);
    return waits;
  }
  void add_layer_waits(std::size_t s, const StageCost& cost) {
    const BlockRange& stage = stages_[s];
    const auto waits = [&](const BlockTimes& times, double seconds, bool backward) {
      return layer_waits(c_, stage, times.scaled_to(seconds), backward);
    };
    for (std::size_t i = 0; i < actions_[s].size(); ++i) {
      const Action::Kind kind = actions_[s][i].kind;
      const bool all_in_weights = zero_bubble_ && s == 0;
      if (kind == Action::Kind::forward)
        communication.back()[i] = waits(forward_times(c_, stage, n_, has_loss(s), 1), cost.forward, false);
      else if ((kind == Action::Kind::weights) == all_in_weights)
        communication.back()[i] = waits(backward_times(c_, stage, n_, has_loss(s), 1),
                                        all_in_weights ? cost.weights : cost.backward, true);
    }
  }

  BlockTimes last_backward(std::size_t s) const {
    const BlockRange& stage = stages_[s];
    BlockTimes times = backward_times(c_, stage, n_, stage.end == c_.count(), 1);
    if (!zero_bubble_ || stage.begin == 0) return times;
    times.loss_s = times.loss_layers_s = 0;
    times.layers_s.assign(times.blocks_s.size(), 0);
    for (std::size_t k = stage.begin; k < stage.end; ++k) {
      const BlockProfile& b = c_.profile.blocks[k];
      times.blocks_s[k - stage.begin] = m_ > 1 ? b.weight_grad_accumulate_s : b.weight_grad_s;
    }
    return times;
  }

  // Adds what a pass with collectives takes longer than the computing in it.
  void add(const PassCost& pass, double computing_s, double& sum_s, double& extra_s, std::size_t action) {
    sum_s += pass.computing_s - computing_s;
    extra_s += pass.computing_s - computing_s + pass.exposed();
    communication.back()[action] = pass.communication;
    for (std::size_t i = 0; i < exposed_s.size(); ++i) exposed_s[i] += pass.exposed_s[i];
  }
  void add_collectives(std::size_t s, const StageCost& cost, std::vector<double>& extra) {
    const BlockRange& stage = stages_[s];
    const bool in_weights = zero_bubble_;  // the last action of a stage is the weight gradients' pass
    const double last_s = in_weights ? cost.weights : cost.backward;
    const BlockTimes last = last_backward(s).scaled_to(last_s);
    if (c_.adds_in_buckets())
      add(backward_with_buckets(c_, stage, last, 1), last_s, backward_s, extra.back(), extra.size() - 1);
    if (c_.shards() == 1) return;
    const bool keeps = c_.axes[c_.dividing_axis()].division.keeps_whole;
    const bool has_loss = stage.end == c_.count();
    const BlockTimes all_backward = backward_times(c_, stage, n_, has_loss, 1).scaled_to(cost.backward);
    const PassCost forward = forward_with_units(
                       c_, stage, forward_times(c_, stage, n_, has_loss, 1).scaled_to(cost.forward)),
                   backward = backward_with_units(c_, stage, all_backward, {.divides = false}),
                   dividing = backward_with_units(c_, stage, last, {.gathers = !keeps && !in_weights});
    for (std::size_t i = 0; i < extra.size(); ++i) {
      const bool is_last = i + 1 == extra.size();
      const Action::Kind kind = actions_[s][i].kind;
      if (kind == Action::Kind::forward && (i == 0 || !keeps)) {
        add(forward, cost.forward, forward_s, extra[i], i);
      } else if (is_last) {
        add(dividing, last_s, backward_s, extra[i], i);
      } else if (kind == Action::Kind::backward && !keeps) {
        add(backward, cost.backward, backward_s, extra[i], i);
      }
    }
  }

  const CostModel& c_;
  const std::vector<BlockRange> stages_;
  const std::vector<std::vector<Action>>& actions_;
  const double n_;
  const int m_;
  const bool zero_bubble_;
  std::vector<StageCost> uncontended_;
  std::vector<StageContention> contention_;
};

// Adds a stage's row to the timeline. The costs of actions contain what the stage receives.
void add_stage(Prediction& p, int row, const std::vector<TimedAction>& actions, const StageCost& receive,
               const SpanSubject& input, const SpanSubject& gradient,
               const std::vector<std::vector<Communication>>& communication) {
  for (std::size_t i = 0; i < actions.size(); ++i) {
    const TimedAction& t = actions[i];
    const bool forward = t.action.kind == Action::Kind::forward,
               weights = t.action.kind == Action::Kind::weights;
    add_span(p, row, forward ? Activity::forward : Activity::backward,
             kind_name(t.action.kind) + (" " + std::to_string(t.action.micro_batch)), t.begin, t.end);
    const double received = forward ? receive.forward : weights ? 0 : receive.backward;
    add_span(p, row, Activity::communication, forward ? "copy of the activations" : "copy of the gradients",
             t.begin, t.begin + received, forward ? input : gradient);
    add_communication(p, row, t.begin, communication[i]);
  }
}

// The replicas of a stage compute alike; each takes as long as the first one, which has the most samples. A
// rank updates its stage when it has the gradients. The devices of one process do so when all have them.
Prediction predict_pipeline(const CostModel& c, Schedule schedule) {
  Prediction p;
  const std::size_t axis = stages_axis(c);
  const std::vector<double> replicas = c.samples_per_device();
  check(c.setup.micro_batches >= 1 && c.setup.micro_batches <= c.setup.batch_size, "[predict] ",
        c.setup.micro_batches, " micro-batches for a batch of ", c.setup.batch_size,
        " samples; use at least 1 and at most as many as samples");
  std::vector<std::vector<double>> samples;  // of each micro-batch, by replica
  for (const double own : replicas) {
    const auto sizes =
        chunk_sizes(static_cast<std::int64_t>(own), static_cast<std::size_t>(c.setup.micro_batches));
    samples.emplace_back(sizes.begin(), sizes.end());
  }
  const int count = c.axes[axis].size, m = static_cast<int>(samples[0].size());
  const double n = replicas[0] / m;
  const bool zero_bubble = schedule == Schedule::zero_bubble;
  const auto actions = schedule_actions(schedule, count, m);
  StageTimes times(c, actions, n, m, zero_bubble);
  const std::vector<BlockRange>& stages = times.stages();

  SimulationOptions options;
  double copies = 0, sent = 0;
  std::vector<StageCost> receive(stages.size(), {0, 0, 0});
  for (std::size_t s = 0; s < stages.size(); ++s) {
    const auto message_s = [&](double bytes) {
      return c.one_process ? c.link.copy.time(bytes) : c.axes[axis].costs.peer_s(bytes);
    };
    const double input = s > 0 ? message_s(c.input_bytes(stages[s].begin, n)) : 0,
                 gradient = s + 1 < stages.size() ? message_s(c.input_bytes(stages[s].end, n)) : 0;
    if (s > 0) sent += 2 * c.input_bytes(stages[s].begin, c.batch());
    if (c.on_gpus() || !c.one_process) {
      options.transfer = std::max({options.transfer, input, gradient});
    } else {  // devices of one process that are cores: the receiving stage's own thread copies
      copies += m * (input + gradient);
      receive[s] = {.forward = input, .backward = gradient, .weights = 0};
    }
  }
  // The slowdown of a stage depends on how many other devices are busy, which in turn depends on the
  // slowdown. So both are iterated to a fixed point, from the slowdown at which all other devices are busy.
  std::vector<double> concurrency(stages.size(), 1);
  Simulation simulation;
  const double beside = static_cast<double>(replicas.size()) * c.devices_of_sample();
  for (int iteration = 0; iteration < 8; ++iteration) {
    times.set(concurrency, options);
    for (std::size_t s = 0; s < stages.size(); ++s) {
      options.costs[s].forward += receive[s].forward;
      options.costs[s].backward += receive[s].backward;
    }
    simulation = simulate(actions, options);
    concurrency = mean_concurrency(simulation);
    // The replicas of a stage, and the devices that divide its layers, are busy when it is.
    for (double& v : concurrency)
      if (beside > 1) v = (v * (count - 1) * beside + beside - 1) / (count * beside - 1);
  }
  const double slowdown = c.devices() == 1 ? 1
                          : c.one_process  ? c.profile.contention.update
                                           : c.collectives().contention.update;
  double update = 0, longest = 0, end = 0;
  std::vector<double> bytes(c.axes.size());
  std::vector<ActionTimes> clock(stages.size());
  for (std::size_t s = 0; s < stages.size(); ++s) {
    const PassCost own = update_cost(c, stages[s], slowdown);
    update += own.computing_s;
    longest = std::max(longest, own.computing_s);
    const std::vector<TimedAction>& done = simulation.devices[s];
    end = std::max(end, done.back().end + own.computing_s + own.exposed());
    const int row = static_cast<int>(s);
    add_stage(p, row, done, receive[s], moved(c, axis, c.input_bytes(stages[s].begin, n)),
              moved(c, axis, c.input_bytes(stages[s].end, n)), times.communication[s]);
    for (const TimedAction& t : done) clock[s].emplace_back(t.begin, t.end);
    const double update_begins = c.one_process ? simulation.total + c.profile.dispatch_s : done.back().end;
    clock[s].emplace_back(update_begins, add_pass(p, row, Activity::optimizer, "update", update_begins, own));
    int gathers = 1;
    if (c.shards() > 1 && !c.axes[c.dividing_axis()].division.keeps_whole) gathers = 2 * m;
    const std::vector<double> of_stage = sent_by_axis(c, stages[s], gathers);
    for (std::size_t i = 0; i < bytes.size(); ++i) {
      times.exposed_s[i] += own.exposed_s[i];
      bytes[i] += beside * of_stage[i];
    }
  }
  bytes[axis] += c.devices_of_sample() * sent;
  p.rows = count;
  if (c.one_process) end = simulation.total + c.profile.dispatch_s + longest;
  // What messages that take time add to the step; the rest of the idle time is the bubble.
  double exposed = copies;
  for (const double s : times.exposed_s) exposed += s;
  const double idle = std::max(0.0, end - (times.forward_s + times.backward_s + exposed + update) / count);
  options.transfer = 0;
  const double messages = std::min(idle, std::max(0.0, simulation.total - simulate(actions, options).total));
  times.exposed_s[axis] += copies + count * messages;
  exposed += count * messages;
  fill_breakdown(p, count, times.forward_s, times.backward_s, exposed, update, end);
  for (double& s : times.exposed_s) s /= count;
  add_memory_of_stages(
      p, c, stages, samples,
      [&](std::size_t own) { return schedule_actions(schedule, count, static_cast<int>(own)); }, clock, true,
      zero_bubble);
  p.bubble_s = p.breakdown.idle_s;
  set_axes(p, c, times.exposed_s, bytes);
  return p;
}

}  // namespace

Prediction predict_stages(const CostModel& c) {
  const std::string& name = c.axes[stages_axis(c)].division.schedule;
  for (const Schedule schedule : {Schedule::gpipe, Schedule::one_f_one_b, Schedule::zero_bubble})
    if (name == schedule_name(schedule)) return predict_pipeline(c, schedule);
  return predict_one_stage_at_a_time(c);
}

}  // namespace tapestry::distributed::planner
