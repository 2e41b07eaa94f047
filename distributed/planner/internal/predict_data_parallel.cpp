// Predictions for the modes in which each device has the whole model.
#include <algorithm>

#include "tapestry/distributed/planner/internal/passes.h"
#include "tapestry/distributed/planner/internal/peak_memory.h"
#include "tapestry/distributed/planner/internal/predictors.h"

namespace tapestry::distributed::planner {

// The step takes as long as on the first device, which has the most samples.
//
// ZeRO (Rajbhandari et al., "ZeRO: memory optimizations toward training trillion parameter models", 2020):
// stage 1 adds whole gradients behind backward, as DDP does. Stage 2 leaves each rank with its part of the
// sum, which is half of the communication. Each rank updates its part of a bucket, and gathers the whole
// bucket while it updates the next one.
Prediction predict_whole_models(const CostModel& c) {
  Prediction p;
  const BlockRange all = c.all_blocks();
  const std::vector<double> samples = c.samples_per_device();
  const double n = samples[0], sent = c.batch() - n;
  const AllReduce alone = {}, &costs = c.axes.empty() ? alone : c.collectives();
  const Contention& slowdown = costs.contention;
  const BlockTimes forward = forward_times(c, all, n, true, slowdown.forward);
  p.breakdown.forward_s = forward.sum();
  // DataParallel on one device runs the plain model without buckets. DistributedDataParallel has buckets even
  // with one rank.
  const bool has_buckets = c.one_process ? samples.size() > 1 : c.adds_in_buckets();
  const BlockTimes plain = backward_times(c, all, n, true, c.one_process ? 1 : slowdown.backward);
  std::vector<double> exposed_s(c.axes.size());
  const auto add_exposed = [&](const PassCost& cost) {
    for (std::size_t i = 0; i < exposed_s.size(); ++i) exposed_s[i] += cost.exposed_s[i];
    p.breakdown.exposed_comm_s += cost.exposed();
  };
  const PassCost backward =
      has_buckets ? backward_with_buckets(c, all, backward_times(c, all, n, true, slowdown.backward),
                                          slowdown.backward)
                  : PassCost{plain.sum(), exposed_s, layer_waits(c, all, plain, true)};
  p.breakdown.backward_s = backward.computing_s;
  add_exposed(backward);
  const PassCost update = update_cost(c, all, slowdown.update);
  p.breakdown.update_s = update.computing_s;
  add_exposed(update);
  std::vector<double> bytes = sent_by_axis(c, all, 0);
  for (double& b : bytes) b *= has_buckets ? c.devices() : 0;
  double now = 0;
  if (c.one_process) {
    // The calling thread copies the batches of the other devices. It then dispatches forward, backward and
    // the optimizer step to all workers.
    if (sent > 0) {
      const double copy_s = c.link.copy.time(c.batch_bytes(sent));
      p.breakdown.exposed_comm_s += copy_s;
      exposed_s[0] += copy_s;
      bytes[0] += c.batch_bytes(sent);
      add_span(p, 0, Activity::communication, "copy of the batch", 0, copy_s,
               moved(c, 0, c.batch_bytes(sent)));
      now = copy_s;
    }
    p.breakdown.idle_s += 3 * c.profile.dispatch_s;
  }
  const double dispatch_s = c.one_process ? c.profile.dispatch_s : 0;
  ActionTimes actions;
  const auto next = [&](Activity activity, const char* name, const PassCost& pass) {
    const double begin = now + dispatch_s;
    now = add_pass(p, 0, activity, name, begin, pass);
    actions.emplace_back(begin, now);
  };
  next(Activity::forward, "forward", {p.breakdown.forward_s, {}, layer_waits(c, all, forward, false)});
  next(Activity::backward, "backward", backward);
  next(Activity::optimizer, "update", update);
  for (std::size_t r = 0; r < samples.size(); ++r) {
    std::vector<HeldMemory> held;
    std::vector<HeldMemory>* const records = r == 0 ? &held : nullptr;
    const MemoryItems peak =
        peak_memory(c, {.range = all,
                        .samples = {samples[r]},
                        .actions = kOnePass,
                        .data = c.batch_bytes(c.one_process && r == 0 ? c.batch() : samples[r]),
                        .has_buckets = has_buckets,
                        .optimizer_share = c.optimizer_share(all),
                        .divides_buckets = c.divides_buckets(),
                        .held = records});
    p.memory.push_back(with_update(c, all, peak, records));
    if (records) keep_memory_over_time(p, r, on_clock(held, actions));
  }
  set_axes(p, c, exposed_s, bytes);
  return p;
}

// The first device broadcasts its parameters, gathers the outputs, computes the loss, adds up the gradients
// and runs the optimizer. The other devices are idle during the loss and the optimizer step.
Prediction predict_master(const CostModel& c) {
  Prediction p;
  const std::vector<double> samples = c.samples_per_device();
  const double n = samples[0], all = c.batch(), sent = all - n;
  const double others = static_cast<double>(samples.size()) - 1,
               parameters = c.parameter_bytes(c.all_blocks());
  const Contention& slowdown = c.link.master_contention;
  const TransferCost& copy = c.link.copy;
  const auto copies_to_others = [&](double bytes) {
    return others > 0 ? others * copy.latency_s + copy.s_per_byte * bytes : 0;
  };

  const double inputs = copies_to_others(c.profile.input_sample_bytes * sent);
  // Sending the outputs to the first device takes as long as sending their gradients back, which is counted
  // below.
  const double outputs = copies_to_others(c.output_bytes(sent));
  // All other devices copy the parameters at the same time. So their latencies overlap, but their bytes share
  // one memory or one link.
  const TransferCost& per_parameter = c.link.broadcast;
  const double broadcast = others > 0 ? c.parameter_count() * per_parameter.latency_s +
                                            others * parameters * per_parameter.s_per_byte
                                      : 0;
  const double added =
      others * (c.parameter_count() * c.link.add.latency_s + parameters * c.link.add.s_per_byte);
  const double forward = slowdown.forward * c.forward(c.all_blocks(), n);
  const double backward = slowdown.backward * c.backward(c.all_blocks(), n);
  const double loss_forward = c.profile.loss.forward_s.at(all),
               loss_backward = c.profile.loss.backward_s.at(all);
  const double update = slowdown.update * c.update(c.all_blocks()), devices = others + 1;

  p.breakdown.forward_s = forward + loss_forward / devices;
  p.breakdown.backward_s = backward + loss_backward / devices;
  p.breakdown.update_s = update / devices;
  p.breakdown.exposed_comm_s = inputs + broadcast + 2 * outputs + added;
  p.breakdown.idle_s = others / devices * (loss_forward + loss_backward + update) +
                       (others > 0 ? 2 * c.profile.dispatch_s : 0);
  p.rows = static_cast<int>(samples.size());
  ActionTimes actions;
  double loss_begins = 0, sum_begins = 0;
  for (int r = 0; r < p.rows; ++r) {
    double now = 0;
    const auto next = [&](Activity activity, const char* name, double seconds, bool runs, double bytes = 0) {
      const SpanSubject subject = bytes > 0 ? moved(c, 0, bytes) : SpanSubject();
      if (runs) add_span(p, r, activity, name, now, now + seconds, subject);
      now += seconds;
    };
    const double dispatch_s = others > 0 ? c.profile.dispatch_s : 0;
    next(Activity::communication, "copy of the batch", inputs, true, c.profile.input_sample_bytes * sent);
    next(Activity::communication, "broadcast of the parameters", broadcast, true, others * parameters);
    const double forward_begins = now;
    next(Activity::forward, "forward", forward, true);
    const double forward_ends = now;
    now += dispatch_s;
    next(Activity::communication, "copy of the outputs", outputs, true, c.output_bytes(sent));
    loss_begins = now;
    next(Activity::forward, "loss", loss_forward, r == 0);
    next(Activity::backward, "backward of the loss", loss_backward, r == 0);
    next(Activity::communication, "copy of the gradients of outputs", outputs, true, c.output_bytes(sent));
    const double backward_begins = now;
    next(Activity::backward, "backward", backward, true);
    actions = {{forward_begins, forward_ends}, {backward_begins, now}};  // the same in all rows
    now += dispatch_s;
    sum_begins = now;
    next(Activity::communication, "sum of the gradients", added, true, others * parameters);
    next(Activity::optimizer, "update", update, r == 0);
  }
  set_axes(p, c, {p.breakdown.exposed_comm_s},
           {others > 0 ? c.batch_bytes(sent) + 2 * c.output_bytes(sent) + 2 * others * parameters : 0});
  for (std::size_t r = 0; r < samples.size(); ++r) {
    DeviceSchedule schedule{.range = c.all_blocks(),
                            .samples = {samples[r]},
                            .actions = kOnePass,
                            .has_loss = false,
                            .keeps_output = true};
    schedule.optimizer_share = r == 0 ? 1 : 0;
    schedule.data =
        r > 0 ? c.profile.input_sample_bytes * samples[r] : c.batch_bytes(all) + 2 * c.output_bytes(all);
    schedule.has_gathered = r == 0;
    std::vector<HeldMemory> held;
    schedule.held = &held;
    MemoryItems peak = peak_memory(c, schedule);
    std::vector<PredictedMemory> samples_of_device = on_clock(held, actions);
    const auto insert = [&](double begin_s, const MemoryItems& items) {
      const auto after = std::find_if(samples_of_device.begin(), samples_of_device.end(),
                                      [&](const PredictedMemory& s) { return s.begin_s > begin_s; });
      samples_of_device.insert(after, {begin_s, items});
    };
    if (r == 0) {  // during the loss, the gradient of the gathered outputs is still to come
      MemoryItems in_loss = {.parameters = parameters,
                             .optimizer = c.profile.optimizer_state * parameters,
                             .data = c.batch_bytes(all) + c.output_bytes(all)};
      in_loss.activations = c.sum(c.all_blocks(), [&](const BlockProfile& b) { return b.saved_bytes.at(n); });
      for (const BackwardInterval& i : c.profile.loss.backward)
        in_loss.workspace = std::max(in_loss.workspace, i.peak_bytes.at(all));
      insert(loss_begins, in_loss);
      if (in_loss.total() > peak.total()) peak = in_loss;
    }
    if (r == 0 && others > 0) {  // the gradients of the other devices arrive one tensor at a time
      const MemoryItems adding = {.parameters = parameters,
                                  .gradients = parameters,
                                  .optimizer = c.profile.optimizer_state * parameters,
                                  .data = schedule.data,
                                  .workspace = c.largest_parameter_bytes()};
      insert(sum_begins, adding);
      if (adding.total() > peak.total()) peak = adding;
    }
    p.memory.push_back(peak);
    keep_memory_over_time(p, r, std::move(samples_of_device));
  }
  return p;
}

}  // namespace tapestry::distributed::planner
