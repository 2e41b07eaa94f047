#include <algorithm>
#include <functional>
#include <memory>
#include <set>

#include "tapestry/autograd/ops/creation.h"
#include "tapestry/core/context.h"
#include "tapestry/core/cuda/device.h"
#include "tapestry/core/error.h"
#include "tapestry/core/internal/worker.h"
#include "tapestry/core/stream.h"
#include "tapestry/distributed/common/batch.h"
#include "tapestry/distributed/common/internal/reducer.h"
#include "tapestry/distributed/planner/internal/buckets.h"
#include "tapestry/distributed/planner/internal/contention.h"
#include "tapestry/distributed/planner/internal/timing.h"
#include "tapestry/distributed/planner/planner.h"

namespace tapestry::distributed::planner {

namespace {

// The smallest message that is measured. Its time is mostly latency, that of the largest mostly bandwidth.
constexpr std::int64_t kSmallest = std::int64_t{1} << 14;

// The largest message that a mode sends: a full bucket, or all gradients if they fit one bucket.
std::int64_t largest_message(const ProfiledModel& model) {
  const auto bucket = static_cast<std::int64_t>(ReducerOptions().bucket_cap_bytes);
  return std::max(8 * kSmallest, std::min(bucket, model.parameter_bytes()));
}

double median_of(int times, const std::function<double()>& measure) {
  std::vector<double> values;
  for (int i = 0; i < times; ++i) values.push_back(measure());
  return median(std::move(values));
}

Tensor bytes_on(Device device, std::int64_t bytes) { return zeros({bytes / 4}, device); }

// Returns the backends of one rank per device. They are those that DataParallel uses: NCCL if every device is
// a separate GPU, otherwise the local backend.
std::vector<std::shared_ptr<Backend>> backends_of(const std::vector<Device>& devices) {
  std::set<int> gpus;
  for (const Device d : devices)
    if (d.is_cuda()) gpus.insert(cuda::device_properties(d).gpu);
  if (!built_with_nccl() || gpus.size() != devices.size())
    return local_backends(static_cast<int>(devices.size()));
  constexpr Milliseconds kRendezvousTimeout(300'000);
  const std::shared_ptr<Store> store = memory_store();
  std::vector<std::shared_ptr<Backend>> backends(devices.size());
  on_workers(devices, [&](int r) {
    const auto at = static_cast<std::size_t>(r);
    backends[at] = nccl_backend(store, r, static_cast<int>(devices.size()), devices[at], kRendezvousTimeout);
  });
  return backends;
}

// Fits a TransferCost to the seconds that task(bytes) returns for several sizes up to `largest`.
TransferCost measure_cost(std::int64_t largest, const std::function<double(std::int64_t)>& task) {
  std::vector<std::pair<double, double>> points;
  for (std::int64_t bytes = largest; bytes >= kSmallest; bytes /= 8) {
    task(bytes);  // warms up allocators and connections
    points.emplace_back(static_cast<double>(bytes), median_of(7, [&] { return task(bytes); }));
  }
  return fit_transfer_cost(points);
}

// The cost per message if `count` messages with `bytes` in total took `seconds` and each has the given
// latency.
TransferCost cost_with_latency(double latency_s, double count, double bytes, double seconds) {
  return {latency_s, std::max(0.0, seconds - count * latency_s) / bytes};
}

// Measures the communication of DataParallelMode::master within steps, so that caches are in the state that a
// step leaves: parameters are copied from the first model to all others before the step, and gradients are
// added to those of the first model after it.
void measure_master(Link& link, const TrainingSetup& setup, const Models& models,
                    const MeasureOptions& options) {
  std::vector<std::vector<nn::Parameter>> parameters;
  std::vector<Device> first, others;
  for (const auto& model : models) {
    (parameters.empty() ? first : others).push_back(model->device());
    parameters.push_back(model->parameters());
  }
  const std::size_t tensors = parameters[0].size();
  // Returns the seconds in which the workers of the given devices, in parallel, each run task(worker,
  // parameter) for every parameter.
  const auto time_parameters = [&](const std::vector<Device>& at, const auto& task) {
    return seconds_of([&] {
      on_workers(at, [&](int i) {
        const NoGradGuard no_grad;
        for (std::size_t p = 0; p < tensors; ++p) task(static_cast<std::size_t>(i), p);
        synchronize(at[static_cast<std::size_t>(i)]);
      });
    });
  };
  std::vector<double> sent, added;
  const auto send = [&] {
    sent.push_back(time_parameters(others, [&](std::size_t i, std::size_t p) {
      parameters[i + 1][p]->detach().copy_(parameters[0][p]->detach());
    }));
  };
  const auto add = [&] {
    added.push_back(time_parameters(first, [&](std::size_t, std::size_t p) {
      for (std::size_t r = 1; r < models.size(); ++r)
        parameters[0][p]->grad().add_(parameters[r][p]->grad().to(first[0]));
    }));
  };
  const std::int64_t samples = chunk_sizes(setup.batch_size, models.size())[0];
  link.master_contention =
      measure_contention(models, samples, options.passes * passes_of(samples, setup.batch_size), send, add);
  const double senders = static_cast<double>(others.size()),
               bytes = senders * static_cast<double>(models[0]->parameter_bytes());
  link.broadcast =
      cost_with_latency(link.copy.latency_s, static_cast<double>(tensors), bytes, median(std::move(sent)));
  link.add = cost_with_latency(link.add.latency_s, senders * static_cast<double>(tensors), bytes,
                               median(std::move(added)));
}

// Measures the all-reduces of a group. Collective: each rank passes its own model. Only the result on rank 0
// is meaningful.
AllReduce measure_all_reduce(ProcessGroup& group, ProfiledModel& model, const TrainingSetup& setup,
                             const MeasureOptions& options) {
  AllReduce result;
  if (group.size() == 1) return result;
  const Device device = model.device();
  const DeviceGuard guard(device);
  const TransferCost isolated = measure_cost(largest_message(model), [&](std::int64_t bytes) {
    const Tensor t = bytes_on(device, bytes);
    synchronize(device);
    group.barrier().wait();
    return seconds_of([&] {
      group.all_reduce(t, ReduceOp::mean).wait();
      synchronize(device);
    });
  });

  // The outputs are allocated each time, as fully_shard() does.
  const auto message_of = [&](bool gathers) {
    const auto half = [&](std::int64_t bytes) {
      const Tensor part = bytes_on(device, std::max<std::int64_t>(4, bytes / group.size()));
      const Tensor whole = zeros({part.numel() * group.size()}, device);
      synchronize(device);
      group.barrier().wait();
      return seconds_of([&] {
        if (gathers) group.all_gather(whole, part).wait();
        else group.reduce_scatter(part, whole, ReduceOp::mean).wait();
        synchronize(device);
      });
    };
    const TransferCost whole = measure_cost(largest_message(model), half);
    const double messages = group.size() - 1;  // of 1 / size of the bytes each
    return TransferCost{whole.latency_s / messages, whole.s_per_byte * group.size() / messages};
  };
  result.gather_message = message_of(true);
  result.scatter_message = message_of(false);
  // From the first rank to the second. All ranks wait until it has arrived.
  result.peer_message = measure_cost(largest_message(model), [&](std::int64_t bytes) {
    const Tensor t = bytes_on(device, bytes);
    synchronize(device);
    group.barrier().wait();
    const double own_s = seconds_of([&] {
      if (group.rank() == 0) group.send(t, 1, 0, "a message between stages").wait();
      if (group.rank() == 1) group.recv(t, 0, 0, "a message between stages").wait();
      synchronize(device);
    });
    return largest_of(group, device, {own_s})[0];
  });

  // Now measure the all-reduces of one bucket per block in two ways: after a step, and overlapped with
  // backward.
  Buckets buckets(model, group);
  const std::int64_t samples = chunk_sizes(setup.batch_size, static_cast<std::size_t>(setup.devices))[0];
  const auto pass = [&](bool overlaps) {
    group.barrier().wait();
    buckets.overlaps = overlaps;
    const double own_s = seconds_of([&] {
      model.forward(samples, buckets);
      buckets.backward();
    });
    return largest_of(group, device, {own_s})[0];
  };
  pass(false);
  std::vector<double> after_step_s, delays_s, overlapped_s;
  // Each pass takes all measurements in turn, so that all see the same state of the machine.
  for (int i = 0; i < options.passes; ++i) {
    const double without = pass(false);
    group.barrier().wait();
    after_step_s.push_back(seconds_of([&] { buckets.average_all(); }));
    delays_s.push_back(pass(true) - without);
    overlapped_s.push_back(buckets.overlapped_s());
  }
  buckets.overlaps = false;
  result.contention = measure_contention(group, model, buckets, samples,
                                         options.passes * passes_of(samples, setup.batch_size));
  const auto count = static_cast<double>(model.count()), bytes = static_cast<double>(model.parameter_bytes());
  // Gradients that backward has just computed cannot be faster to average than zeros that are in caches. A
  // measurement that says so is noise, so the larger cost is taken.
  const TransferCost after =
      cost_with_latency(isolated.latency_s, count, bytes, median(std::move(after_step_s)));
  const TransferCost all_reduce = {isolated.latency_s, std::max(isolated.s_per_byte, after.s_per_byte)};
  result.message = ring_message(all_reduce, group.size());
  const double overlapped = median(std::move(overlapped_s));
  if (overlapped == 0) return result;
  result.overlap_slowdown = std::max(1.0, overlapped / ((count - 1) * all_reduce.latency_s +
                                                        buckets.overlapped_bytes() * all_reduce.s_per_byte));
  result.compute_stall = std::clamp(median(std::move(delays_s)) / overlapped, 0.0, 1.0);
  return result;
}

}  // namespace

AllReduce measure_all_reduce(ProcessGroup& group, const Model& model, const TrainingSetup& setup,
                             Device device, const MeasureOptions& options) {
  check(options.passes >= 1, "[measure_all_reduce] ", options.passes, " passes; pass 1 or more");
  check(group.size() == setup.devices, "[measure_all_reduce] the group has ", group.size(),
        " ranks, the setup has ", setup.devices, " devices; use one rank per device");
  ProfiledModel replica(model, setup, device);
  return measure_all_reduce(group, replica, setup, options);
}

Link measure_link(const Model& model, const TrainingSetup& setup, const MeasureOptions& options) {
  check(setup.devices >= 1 && options.passes >= 1, "[measure_link] ", setup.devices, " devices, ",
        options.passes, " passes; pass 1 or more of each");
  Link link;
  const std::vector<Device> devices = devices_of(setup);
  if (devices.size() == 1) return link;
  // The source is filled by its own device's worker, so that it is in that core's caches and not in the
  // caches of the core that copies.
  const std::vector<Device> from = {devices[0]}, to = {devices[1]};
  const auto transfer_s = [&](std::int64_t bytes, const auto& transfer) {
    Tensor source, destination;
    on_workers(from, [&](int) {
      source = bytes_on(from[0], bytes);
      synchronize(from[0]);
    });
    double s = 0;
    on_workers(to, [&](int) {
      destination = bytes_on(to[0], bytes);
      synchronize(to[0]);
      s = seconds_of([&] {
        transfer(source, destination);
        synchronize(to[0]);
      });
    });
    return s;
  };
  Models models;
  for (const Device d : devices) models.push_back(std::make_unique<ProfiledModel>(model, setup, d));
  const std::int64_t largest = largest_message(*models[0]);
  link.copy = measure_cost(largest, [&](std::int64_t bytes) {
    return transfer_s(
        bytes, [](const Tensor& source, const Tensor& destination) { source.to(destination.device()); });
  });
  link.add = measure_cost(largest, [&](std::int64_t bytes) {
    return transfer_s(bytes, [](const Tensor& source, const Tensor& destination) {
      destination.add_(source.to(destination.device()));
    });
  });
  measure_master(link, setup, models, options);
  std::vector<std::shared_ptr<ProcessGroup>> groups(devices.size());
  const std::vector<std::shared_ptr<Backend>> backends = backends_of(devices);
  const std::shared_ptr<Store> store = memory_store();
  for (std::size_t r = 0; r < devices.size(); ++r)
    groups[r] = make_process_group(backends[r], store, {.check = false}, "devices");
  on_workers(devices, [&](int i) {
    const auto r = static_cast<std::size_t>(i);
    const AllReduce measured = measure_all_reduce(*groups[r], *models[r], setup, options);
    if (r == 0) link.local = measured;
  });
  return link;
}

}  // namespace tapestry::distributed::planner
