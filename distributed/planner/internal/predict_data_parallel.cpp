// Predictions for the modes in which each device has the whole model.
#include <algorithm>
#include <numeric>

#include "tapestry/distributed/common/internal/bucket.h"
#include "tapestry/distributed/common/internal/reducer.h"
#include "tapestry/distributed/planner/internal/ddp_buckets.h"
#include "tapestry/distributed/planner/internal/overlap.h"
#include "tapestry/distributed/planner/internal/peak_memory.h"
#include "tapestry/distributed/planner/internal/predictors.h"
#include "tapestry/distributed/planner/internal/two_queues.h"

namespace tapestry::distributed::planner {

DdpBuckets ddp_buckets(const CostModel& c, double n, double slowdown) {
  DdpBuckets buckets;
  std::vector<BucketParameter> parameters;
  std::vector<double> ready_of;  // per parameter, in seconds of computing
  double& compute = buckets.compute_s;
  compute = slowdown * c.profile.loss.backward_s.at(n);
  for (std::size_t k = c.count(); k-- > 0;) {
    const BlockProfile& block = c.profile.blocks[k];
    compute += slowdown * block.backward_s.at(n);
    compute += slowdown * block.bucket_copy_s;
    for (std::size_t i = block.parameter_bytes.size(); i-- > 0;) {
      parameters.push_back({static_cast<std::size_t>(block.parameter_bytes[i]), DType::f32, {}});
      ready_of.push_back(compute);
    }
  }
  std::vector<int> order(parameters.size());
  std::iota(order.begin(), order.end(), 0);
  buckets.of_gradient.resize(parameters.size());
  for (const auto& members :
       assign_buckets(parameters, order, static_cast<std::size_t>(c.setup.first_bucket_bytes),
                      static_cast<std::size_t>(c.setup.bucket_cap_bytes))) {
    double bytes = 0, complete = 0;
    for (const int i : members) {
      bytes += static_cast<double>(parameters[static_cast<std::size_t>(i)].bytes);
      complete = std::max(complete, ready_of[static_cast<std::size_t>(i)]);
      buckets.of_gradient[static_cast<std::size_t>(i)] = buckets.bytes.size();
    }
    buckets.bytes.push_back(bytes);
    buckets.ready_s.push_back(complete);
  }
  return buckets;
}

DdpBuckets zero1_buckets(const CostModel& c) {
  std::vector<BucketParameter> parameters;
  for (const BlockProfile& block : c.profile.blocks)
    for (const std::int64_t bytes : block.parameter_bytes)
      parameters.push_back({static_cast<std::size_t>(bytes), DType::f32, {}});
  std::vector<int> order(parameters.size());
  std::iota(order.begin(), order.end(), 0);
  const std::size_t cap = static_cast<std::size_t>(c.setup.bucket_cap_bytes);
  DdpBuckets buckets;
  for (const auto& members : assign_buckets(parameters, order, cap, cap)) {
    buckets.bytes.push_back(0);
    for (const int i : members)
      buckets.bytes.back() += static_cast<double>(parameters[static_cast<std::size_t>(i)].bytes);
  }
  return buckets;
}

// The step takes as long as on the first device, which has the most samples.
//
// ZeRO (Rajbhandari et al., "ZeRO: memory optimizations toward training trillion parameter models", 2020):
// stage 1 adds whole gradients behind backward, as DDP does. Stage 2 leaves each rank with its part of the
// sum, which is half of the communication. Each rank updates its part of a bucket, and gathers the whole
// bucket while it updates the next one.
Prediction predict_whole_models(const CostModel& c) {
  Prediction p;
  const std::vector<double> samples = c.samples_per_device();
  const double n = samples[0], sent = c.batch() - n, all_bytes = c.parameter_bytes(c.all_blocks());
  const int parts = c.parts(&StepDivision::divides_optimizer),
            zero = c.axes.empty() ? 0 : c.axes[0].division.zero;
  const AllReduce alone = {}, &costs = c.axes.empty() ? alone : c.collectives();
  const Contention& slowdown = costs.contention;
  p.breakdown.forward_s = slowdown.forward * (c.forward(c.all_blocks(), n) + c.profile.loss.forward_s.at(n));
  // DataParallel on one device runs the plain model without buckets. DistributedDataParallel has buckets even
  // with one rank.
  const bool has_buckets = c.one_process ? samples.size() > 1 : !c.axes.empty();
  DdpBuckets buckets;
  if (has_buckets) {
    buckets = ddp_buckets(c, n, slowdown.backward);
    std::vector<double> reduce_s;
    for (const double bytes : buckets.bytes) reduce_s.push_back(c.reduce_s(bytes));
    const Overlap o = overlap(buckets.ready_s, reduce_s, buckets.compute_s, costs);
    p.breakdown.backward_s = o.backward_s;
    p.breakdown.exposed_comm_s = o.exposed_s;
  } else {
    p.breakdown.backward_s = c.backward(c.all_blocks(), n) + c.profile.loss.backward_s.at(n);
  }
  p.breakdown.update_s = slowdown.update * c.update(c.all_blocks()) / parts;
  if (c.one_process) {
    // The calling thread copies the batches of the other devices. It then dispatches forward, backward and
    // the optimizer step to all workers.
    if (sent > 0) p.breakdown.exposed_comm_s += c.link.copy.time(c.batch_bytes(sent));
    p.breakdown.idle_s += 3 * c.profile.dispatch_s;
  }
  const DdpBuckets gathered = zero == 1 ? zero1_buckets(c) : buckets;
  if (zero > 0) {
    std::vector<ComputePhase> updates;
    std::vector<Collective> gathers;
    for (std::size_t i = 0; i < gathered.bytes.size(); ++i) {
      updates.push_back({p.breakdown.update_s * gathered.bytes[i] / all_bytes});
      gathers.push_back({.seconds = c.gather_s(gathered.bytes[i]), .after = static_cast<int>(i)});
    }
    const TwoQueues step = simulate(updates, gathers, costs);
    p.breakdown.update_s = std::accumulate(step.computing_s.begin(), step.computing_s.end(), 0.0);
    p.breakdown.exposed_comm_s += step.tail_s;
  }
  for (std::size_t r = 0; r < samples.size(); ++r) {
    MemoryItems peak =
        peak_memory(c, {.range = c.all_blocks(),
                        .samples = {samples[r]},
                        .actions = kOnePass,
                        .data = c.batch_bytes(c.one_process && r == 0 ? c.batch() : samples[r]),
                        .has_buckets = has_buckets,
                        .optimizer_share = 1.0 / parts,
                        .divided_buckets = zero == 2 ? parts : 1});
    if (zero > 0) {
      // While the parameters are gathered, at most two whole buckets exist besides, with this rank's parts of
      // them.
      MemoryItems updating = peak;
      updating.activations = 0;
      updating.workspace = parts > 1 ? gathered.two_largest() * (1 + 1.0 / parts) : 0;
      if (zero == 2) updating.buckets = all_bytes / parts;
      if (updating.total() > peak.total()) peak = updating;
    }
    p.memory.push_back(peak);
  }
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
    MemoryItems peak = peak_memory(c, schedule);
    if (r == 0) {  // during the loss, the gradient of the gathered outputs is still to come
      MemoryItems in_loss = {.parameters = parameters,
                             .optimizer = c.profile.optimizer_state * parameters,
                             .data = c.batch_bytes(all) + c.output_bytes(all)};
      in_loss.activations = c.sum(c.all_blocks(), [&](const BlockProfile& b) { return b.saved_bytes.at(n); });
      for (const BackwardInterval& i : c.profile.loss.backward)
        in_loss.workspace = std::max(in_loss.workspace, i.peak_bytes.at(all));
      if (in_loss.total() > peak.total()) peak = in_loss;
    }
    if (r == 0 && others > 0) {  // the gradients of the other devices arrive one tensor at a time
      const MemoryItems adding = {.parameters = parameters,
                                  .gradients = parameters,
                                  .optimizer = c.profile.optimizer_state * parameters,
                                  .data = schedule.data,
                                  .workspace = c.largest_parameter_bytes()};
      if (adding.total() > peak.total()) peak = adding;
    }
    p.memory.push_back(peak);
  }
  return p;
}

}  // namespace tapestry::distributed::planner
