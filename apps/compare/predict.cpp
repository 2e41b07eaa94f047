#include "tapestry/apps/compare/predict.h"

#include <algorithm>
#include <cstdio>
#include <functional>
#include <map>
#include <numeric>
#include <tuple>
#include <utility>

#include "tapestry/apps/compare/case.h"
#include "tapestry/apps/compare/peak_memory.h"
#include "tapestry/apps/compare/split.h"
#include "tapestry/core/error.h"
#include "tapestry/distributed/common/internal/bucket.h"
#include "tapestry/distributed/common/internal/reducer.h"
#include "tapestry/distributed/pipeline/schedule.h"

namespace apps::compare {

using tapestry::check;
using namespace tapestry::distributed;

namespace {

const std::vector<Action> kOnePass = {{Action::Kind::forward, 0}, {Action::Kind::backward, 0}};

double batch_bytes(const Case& c, double n) { return n * (c.profile.image_bytes + c.profile.label_bytes); }

// ---- one model a device ----

// Averaging, as Reducer does it: buckets in the order in which gradients come.
Overlap averaged_backward(const Case& c, double n, const AllReduce& all_reduce) {
  const double slower = all_reduce.contention.backward;
  std::vector<BucketParameter> parameters;
  std::vector<double> ready_of;  // by parameter, in seconds of computing
  double compute = slower * c.profile.loss.backward_s.at(n);
  for (std::size_t k = c.count(); k-- > 0;) {
    const BlockProfile& block = c.profile.blocks[k];
    compute += slower * block.backward_s.at(n);
    compute += slower * block.copy_s;  // into its buckets
    for (std::size_t i = block.parameter_bytes.size(); i-- > 0;) {
      parameters.push_back({static_cast<std::size_t>(block.parameter_bytes[i]), tapestry::DType::f32, {}});
      ready_of.push_back(compute);
    }
  }
  std::vector<int> order(parameters.size());
  std::iota(order.begin(), order.end(), 0);
  const ReducerOptions sizes;
  std::vector<double> ready, costs;
  for (const auto& bucket :
       assign_buckets(parameters, order, sizes.first_bucket_bytes, sizes.bucket_cap_bytes)) {
    double bytes = 0, complete = 0;
    for (const int i : bucket) {
      bytes += static_cast<double>(parameters[static_cast<std::size_t>(i)].bytes);
      complete = std::max(complete, ready_of[static_cast<std::size_t>(i)]);
    }
    ready.push_back(complete);
    costs.push_back(ring_time(all_reduce.message, bytes, c.devices()));
  }
  return overlap(ready, costs, compute, all_reduce);
}

double loss_and(const BlockProfile& loss, double n, double model) { return model + loss.forward_s.at(n); }

Prediction single(const Case& c) {
  Prediction p;
  const double n = c.batch();
  p.split.forward_s = loss_and(c.profile.loss, n, c.forward(c.whole(), n));
  p.split.backward_s = c.backward(c.whole(), n) + c.profile.loss.backward_s.at(n);
  p.split.update_s = c.update(c.whole());
  p.memory = {peak_of(c, {.part = c.whole(), .samples = n, .actions = kOnePass, .data = batch_bytes(c, n)})};
  return p;
}

// A replica a device, gradients averaged while backward runs. The device with the largest share is waited
// for.
Prediction replicas(const Case& c, bool one_process) {
  Prediction p;
  const std::vector<double> shares = c.shares();
  const double n = shares[0], passed_on = c.batch() - n;
  const AllReduce& all_reduce = one_process ? c.link.local : c.link.ranks;
  const Contention& slower = all_reduce.contention;
  p.split.forward_s = slower.forward * loss_and(c.profile.loss, n, c.forward(c.whole(), n));
  // In one process, one device is the plain model; one rank has buckets all the same.
  const bool has_buckets = !one_process || c.devices() > 1;
  const Overlap o = has_buckets ? averaged_backward(c, n, all_reduce)
                                : Overlap{c.backward(c.whole(), n) + c.profile.loss.backward_s.at(n), 0};
  p.split.backward_s = o.backward_s;
  p.split.exposed_comm_s = o.exposed_s;
  p.split.update_s = slower.update * c.update(c.whole());
  if (one_process) {
    // Images and labels of the others are copied by the calling thread; then forward, backward and the step
    // are handed to all workers.
    if (passed_on > 0) p.split.exposed_comm_s += c.link.copy.time(batch_bytes(c, passed_on));
    p.split.idle_s += 3 * c.profile.handoff_s;
  }
  for (std::size_t r = 0; r < shares.size(); ++r)
    p.memory.push_back(peak_of(c, {.part = c.whole(),
                                   .samples = shares[r],
                                   .actions = kOnePass,
                                   .data = batch_bytes(c, one_process && r == 0 ? c.batch() : shares[r]),
                                   .has_buckets = has_buckets}));
  return p;
}

// The first device sends its parameters out, collects the outputs, has the loss, collects the gradients, and
// steps, while the others wait.
Prediction master(const Case& c) {
  Prediction p;
  const std::vector<double> shares = c.shares();
  const double n = shares[0], all = c.batch(), passed_on = all - n;
  const double others = static_cast<double>(shares.size()) - 1, parameters = c.parameters(c.whole());
  const Contention& slower = c.link.master;
  const Line& copy = c.link.copy;
  const auto sent = [&](double bytes) {
    return others > 0 ? others * copy.latency_s + copy.s_per_byte * bytes : 0;
  };

  const double images = sent(c.profile.image_bytes * passed_on);
  const double outputs = sent(c.output_bytes(passed_on));  // and their gradients, back
  // All receive at once, but out of one memory, or over one link.
  const Line& line = c.link.broadcast;
  const double broadcast =
      others > 0 ? c.tensors() * line.latency_s + others * parameters * line.s_per_byte : 0;
  const double added = others * (c.tensors() * c.link.add.latency_s + parameters * c.link.add.s_per_byte);
  const double forward = slower.forward * c.forward(c.whole(), n);
  const double backward = slower.backward * c.backward(c.whole(), n);
  const double loss_forward = c.profile.loss.forward_s.at(all),
               loss_backward = c.profile.loss.backward_s.at(all);
  const double update = slower.update * c.update(c.whole()), devices = others + 1;

  p.split.forward_s = forward + loss_forward / devices;
  p.split.backward_s = backward + loss_backward / devices;
  p.split.update_s = update / devices;
  p.split.exposed_comm_s = images + broadcast + 2 * outputs + added;
  p.split.idle_s =
      others / devices * (loss_forward + loss_backward + update) + (others > 0 ? 2 * c.profile.handoff_s : 0);
  for (std::size_t r = 0; r < shares.size(); ++r) {
    MemoryCase m{.part = c.whole(), .samples = shares[r], .actions = kOnePass, .has_loss = false};
    m.data = r > 0 ? c.profile.image_bytes * shares[r]
                   : batch_bytes(c, all) + c.output_bytes(all) + c.profile.loss.kept_bytes.at(all);
    MemoryItems peak = peak_of(c, m);
    if (r == 0 && others > 0) {  // the others' gradients come one by one
      const MemoryItems added_up = {.parameters = parameters,
                                    .gradients = parameters,
                                    .data = m.data,
                                    .workspace = c.largest_parameter()};
      if (added_up.total() > peak.total()) peak = added_up;
    }
    p.memory.push_back(peak);
  }
  return p;
}

// ---- a part of the model a device ----

std::vector<Part> parts_of(const Case& c) {
  std::vector<Part> parts;
  std::size_t begin = 0;
  for (const int count : c.workload.split) {
    check(count >= 1, "[predict] the split has a part of ", count, " blocks; give each at least one");
    parts.push_back({begin, begin + static_cast<std::size_t>(count)});
    begin = parts.back().end;
  }
  check(begin == c.count() && parts.size() == static_cast<std::size_t>(c.devices()),
        "[predict] the split has ", parts.size(), " parts with ", begin, " blocks; the model has ", c.count(),
        ", for ", c.devices(), " devices");
  return parts;
}

std::vector<MemoryItems> memory_of_parts(const Case& c, const std::vector<Part>& parts, double n,
                                         const std::vector<std::vector<Action>>& actions,
                                         bool in_halves = false) {
  std::vector<MemoryItems> memory;
  for (std::size_t s = 0; s < parts.size(); ++s)
    memory.push_back(peak_of(c, {.part = parts[s],
                                 .samples = n,
                                 .actions = actions[s],
                                 .data = (s == 0 ? c.profile.image_bytes * c.batch() : 0) +
                                         (s + 1 == parts.size() ? c.profile.label_bytes * c.batch() : 0),
                                 .has_loss = s + 1 == parts.size(),
                                 .keeps_input = s > 0,
                                 .in_halves = in_halves}));
  return memory;
}

// All devices step their parts at once.
struct Update {
  double longest = 0, sum = 0;
};
Update update_of_parts(const Case& c, const std::vector<Part>& parts) {
  Update update;
  const double slower = parts.size() > 1 ? c.profile.contention.update : 1;
  for (const Part& part : parts) {
    update.sum += slower * c.update(part);
    update.longest = std::max(update.longest, slower * c.update(part));
  }
  return update;
}

void fill_means(Prediction& p, double devices, double forward, double backward, double copies, double update,
                double step) {
  p.split = {.forward_s = forward / devices,
             .backward_s = backward / devices,
             .exposed_comm_s = copies / devices,
             .update_s = update / devices,
             .idle_s = step - (forward + backward + copies + update) / devices};
}

// One part at work at a time.
Prediction model_parallel(const Case& c) {
  Prediction p;
  const std::vector<Part> parts = parts_of(c);
  const double n = c.batch();
  double copies = 0;
  for (std::size_t s = 1; s < parts.size(); ++s)
    copies += 2 * c.link.copy.time(c.input_bytes(parts[s].begin, n));
  const double forward = loss_and(c.profile.loss, n, c.forward(c.whole(), n));
  const double backward = c.backward(c.whole(), n) + c.profile.loss.backward_s.at(n);
  const Update update = update_of_parts(c, parts);
  fill_means(p, c.devices(), forward, backward, copies, update.sum,
             forward + backward + copies + update.longest);
  p.memory = memory_of_parts(c, parts, n, std::vector(parts.size(), kOnePass));
  return p;
}

// A stage's average micro-batch alone. All passes but the first add to gradients that are there.
StageCost cost_alone(const Case& c, const Part& part, double n, bool in_halves) {
  const double m = c.workload.micro_batches, added = (m - 1) / m;
  const bool last = part.end == c.count();
  StageCost cost{.forward = c.forward(part, n), .backward = 0, .weights = 0};
  if (in_halves && part.begin > 0) {
    cost.backward = c.sum(part, [](const BlockProfile& b) { return b.inputs_s; });
    cost.weights = c.sum(
        part, [&](const BlockProfile& b) { return b.weights_s + added * (b.weights_added_s - b.weights_s); });
  } else {
    const double accumulate = c.sum(part, [](const BlockProfile& b) { return b.accumulate_s; });
    cost.backward = c.backward(part, n) + added * accumulate;
  }
  if (last) {
    cost.forward += c.profile.loss.forward_s.at(n);
    cost.backward += c.profile.loss.backward_s.at(n);
  }
  // Nobody waits for the gradients of images.
  if (in_halves && part.begin == 0) cost.weights = std::exchange(cost.backward, 0);
  return cost;
}

// By device: which share of the others is at work while it is, on average.
std::vector<double> company(const Simulation& simulation) {
  const std::size_t count = simulation.devices.size();
  std::vector<double> busy(count), with_others(count);
  std::vector<std::tuple<double, int, std::size_t>> changes;  // when, +1 or -1, who
  for (std::size_t d = 0; d < count; ++d)
    for (const TimedAction& t : simulation.devices[d]) {
      changes.emplace_back(t.begin, 1, d);
      changes.emplace_back(t.end, -1, d);
    }
  std::sort(changes.begin(), changes.end());
  std::vector<int> at_work(count);
  double now = 0;
  for (const auto& [when, change, who] : changes) {
    const auto workers = static_cast<double>(std::count(at_work.begin(), at_work.end(), 1));
    for (std::size_t d = 0; d < count; ++d) {
      if (at_work[d] == 0) continue;
      busy[d] += when - now;
      with_others[d] += (when - now) * (workers - 1);
    }
    now = when;
    at_work[who] += change;
  }
  for (std::size_t d = 0; d < count; ++d)
    with_others[d] = count > 1 && busy[d] > 0 ? with_others[d] / busy[d] / static_cast<double>(count - 1) : 0;
  return with_others;
}

Prediction pipeline(const Case& c, Schedule schedule) {
  Prediction p;
  const std::vector<Part> parts = parts_of(c);
  const int m = c.workload.micro_batches, stages = static_cast<int>(parts.size());
  check(m >= 1 && m <= c.workload.batch_size, "[predict] ", m, " micro-batches for a batch of ",
        c.workload.batch_size, " samples; give from one to as many as samples");
  const double n = c.batch() / m;
  const bool in_halves = schedule == Schedule::zero_bubble;
  const auto actions = schedule_actions(schedule, stages, m);

  SimulationOptions options;
  double copies = 0;
  std::vector<PartContention> contention;
  if (!in_halves) contention = c.profile.parts;
  std::vector<StageCost> alone, received(parts.size(), {0, 0, 0});
  for (std::size_t s = 0; s < parts.size(); ++s) {
    alone.push_back(cost_alone(c, parts[s], n, in_halves));
    if (in_halves && s < c.profile.parts_in_halves.size()) {
      const PartInHalves& measured = c.profile.parts_in_halves[s];
      alone[s].backward = measured.inputs_s;
      alone[s].weights = measured.weights_s + (m - 1.0) / m * (measured.weights_added_s - measured.weights_s);
      contention.push_back(measured.contention);
    }
    const double in = s > 0 ? c.link.copy.time(c.input_bytes(parts[s].begin, n)) : 0;
    const double back = s + 1 < parts.size() ? c.link.copy.time(c.input_bytes(parts[s].end, n)) : 0;
    if (c.on_gpus()) {
      options.transfer = std::max({options.transfer, in, back});
    } else {  // the receiver's own thread copies
      copies += m * (in + back);
      received[s] = {.forward = in, .backward = back, .weights = 0};
    }
  }
  // Each is slower while others are at work, and how slow they are decides who is at work when: in turn,
  // until both agree.
  std::vector<StageCost> cost = alone;
  std::vector<double> beside(parts.size(), 1);
  Simulation simulation;
  for (int turn = 0; turn < 8; ++turn) {
    options.costs.clear();
    for (std::size_t s = 0; s < parts.size(); ++s) {
      const PartContention slower = s < contention.size() ? contention[s] : PartContention();
      const auto longer = [&](double time, double factor) { return time * (1 + (factor - 1) * beside[s]); };
      cost[s] = {longer(alone[s].forward, slower.forward), longer(alone[s].backward, slower.backward),
                 longer(alone[s].weights, slower.weights)};
      options.costs.push_back(
          {cost[s].forward + received[s].forward, cost[s].backward + received[s].backward, cost[s].weights});
    }
    simulation = simulate(actions, options);
    beside = company(simulation);
  }
  double forward = 0, backward = 0;
  for (const StageCost& one : cost) {
    forward += m * one.forward;
    backward += m * (one.backward + one.weights);
  }
  const Update update = update_of_parts(c, parts);
  fill_means(p, c.devices(), forward, backward, copies, update.sum,
             simulation.total + c.profile.handoff_s + update.longest);
  p.memory = memory_of_parts(c, parts, n, actions, in_halves);
  return p;
}

struct Predictor {
  std::function<Prediction(const Case&)> predict;
  bool splits_the_model = false;
};

const Predictor* predictor_of(const std::string& mode) {
  static const std::map<std::string, Predictor> all = {
      {"single", {single}},
      {"dp-master", {master}},
      {"dp-replicated", {[](const Case& c) { return replicas(c, true); }}},
      {"ddp", {[](const Case& c) { return replicas(c, false); }}},
      {"model", {model_parallel, true}},
      {"pipeline-gpipe", {[](const Case& c) { return pipeline(c, Schedule::gpipe); }, true}},
      {"pipeline-1f1b", {[](const Case& c) { return pipeline(c, Schedule::one_f_one_b); }, true}},
      {"pipeline-zero-bubble", {[](const Case& c) { return pipeline(c, Schedule::zero_bubble); }, true}},
  };
  const auto found = all.find(mode);
  return found == all.end() ? nullptr : &found->second;
}

}  // namespace

std::vector<std::pair<std::string, double>> MemoryItems::items() const {
  return {{"parameters", parameters},   {"gradients", gradients}, {"optimizer", optimizer},
          {"activations", activations}, {"buckets", buckets},     {"data", data},
          {"workspace", workspace}};
}

const MemoryItems& Prediction::largest() const {
  return *std::max_element(memory.begin(), memory.end(),
                           [](const MemoryItems& a, const MemoryItems& b) { return a.total() < b.total(); });
}

Overlap overlap(std::span<const double> ready, std::span<const double> costs, double compute,
                const AllReduce& beside) {
  check(ready.size() == costs.size(), "[overlap] ", ready.size(), " buckets with ", costs.size(), " costs");
  const double slower = beside.slower_beside, speed = 1 - beside.stops_compute;
  check(speed >= 0 && speed <= 1 && slower >= 1, "[overlap] communication stops ", beside.stops_compute,
        " of computing and takes ", slower, " times as long; give a share from 0 to 1, and 1 or more");
  double now = 0, done = 0, queued = 0;  // queued: what communication is left, as long as it takes alone
  const auto compute_until = [&](double target) {
    const double drained = queued * slower;  // so long both go on
    if (done + drained * speed < target) {
      now += drained + target - (done + drained * speed);
      queued = 0;
    } else if (target > done) {
      now += (target - done) / speed;
      queued -= (target - done) / speed / slower;
    }
    done = std::max(done, target);
  };
  for (std::size_t i = 0; i < ready.size(); ++i) {
    compute_until(std::min(ready[i], compute));
    queued += costs[i];
  }
  compute_until(compute);
  return {now, queued};
}

std::optional<Prediction> predict(const std::string& mode, const Profile& profile, const Link& link,
                                  const Workload& workload) {
  const Predictor* const predictor = predictor_of(mode);
  if (!predictor) return std::nullopt;
  check(!profile.blocks.empty(), "[predict] the profile has no blocks; measure a model first");
  check(workload.devices >= 1 && workload.devices <= workload.batch_size, "[predict] ", workload.devices,
        " devices for a batch of ", workload.batch_size, " samples; give from one to as many as samples");
  Prediction p = predictor->predict({profile, link, workload});
  p.mode = mode;
  p.devices = static_cast<int>(p.memory.size());
  const StepSplit& s = p.split;
  p.step_s = s.forward_s + s.backward_s + s.exposed_comm_s + s.update_s + s.idle_s;
  return p;
}

std::optional<Prediction> simulate_devices(const std::string& mode, const Profile& profile, const Link& link,
                                           const Workload& workload, int devices) {
  const Predictor* const predictor = predictor_of(mode);
  if (!predictor) return std::nullopt;
  Workload w = workload;
  w.devices = devices;
  if (predictor->splits_the_model) {
    if (devices > static_cast<int>(profile.blocks.size())) return std::nullopt;
    w.split = balanced_split(profile.costs(static_cast<double>(w.batch_size) / w.micro_batches), devices);
  }
  Profile alone = profile;
  alone.contention = {};
  alone.parts.clear();
  alone.parts_in_halves.clear();
  Link apart = link;
  apart.master = apart.local.contention = apart.ranks.contention = {};
  std::optional<Prediction> p = predict(mode, alone, apart, w);
  if (p) p->simulated = true;
  return p;
}

Link link_with(const Link& measured, std::optional<double> latency_s, std::optional<double> bandwidth) {
  Link link = measured;
  if (!latency_s && !bandwidth) return link;
  const auto change = [&](Line& line) {
    if (latency_s) line.latency_s = *latency_s;
    if (bandwidth) line.s_per_byte = 1 / *bandwidth;
  };
  for (Line* const line : {&link.copy, &link.broadcast, &link.add, &link.local.message, &link.ranks.message})
    change(*line);
  if (bandwidth)
    link.add.s_per_byte += std::max(0.0, measured.add.s_per_byte - measured.broadcast.s_per_byte);
  for (AllReduce* const a : {&link.local, &link.ranks}) *a = {.message = a->message};
  return link;
}

std::vector<std::vector<std::string>> prediction_rows(const std::vector<Prediction>& predictions) {
  const auto fixed = [](double value) {
    char text[64];
    std::snprintf(text, sizeof text, "%.2f", value);
    return std::string(text);
  };
  std::vector<std::string> head = {"mode",         "devices", "step ms", "forward", "backward",
                                   "exposed comm", "update",  "idle",    "peak MiB"};
  for (const auto& item : MemoryItems().items()) head.push_back(item.first);
  std::vector<std::vector<std::string>> rows = {head};
  for (const Prediction& p : predictions) {
    std::vector<std::string> row = {p.mode, std::to_string(p.devices)};
    for (const double s : {p.step_s, p.split.forward_s, p.split.backward_s, p.split.exposed_comm_s,
                           p.split.update_s, p.split.idle_s})
      row.push_back(fixed(s * 1000));
    row.push_back(fixed(p.largest().total() / (1 << 20)));
    for (const auto& item : p.largest().items()) row.push_back(fixed(item.second / (1 << 20)));
    rows.push_back(std::move(row));
  }
  return rows;
}

}  // namespace apps::compare
