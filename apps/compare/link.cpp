#include "tapestry/apps/compare/link.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <functional>
#include <memory>
#include <set>

#include "tapestry/apps/compare/buckets.h"
#include "tapestry/apps/compare/contention.h"
#include "tapestry/apps/compare/timing.h"
#include "tapestry/autograd/ops/creation.h"
#include "tapestry/core/context.h"
#include "tapestry/core/cuda/device.h"
#include "tapestry/core/stream.h"
#include "tapestry/core/internal/worker.h"
#include "tapestry/distributed/common/batch.h"
#include "tapestry/distributed/common/internal/reducer.h"

namespace apps::compare {

using namespace tapestry;
using namespace tapestry::distributed;

namespace {

using Clock = std::chrono::steady_clock;

// From what latency decides to what bandwidth does.
constexpr std::int64_t kSmallest = std::int64_t{1} << 14;

// The most that modes send at once: of gradients a bucket, or all of them.
std::int64_t largest_message(const WatchedModel& model) {
  const auto bucket = static_cast<std::int64_t>(ReducerOptions().bucket_cap_bytes);
  return std::max(8 * kSmallest, std::min(bucket, model.parameter_bytes()));
}

double median_of(int times, const std::function<double()>& measured) {
  std::vector<double> values;
  for (int i = 0; i < times; ++i) values.push_back(measured());
  return median(std::move(values));
}

Tensor bytes_on(Device device, std::int64_t bytes) { return zeros({bytes / 4}, device); }

// A rank a device, joined as DataParallel joins them: by NCCL between GPUs that are each their own.
std::vector<std::shared_ptr<Backend>> backends_of(const std::vector<Device>& devices) {
  std::set<int> gpus;
  for (const Device d : devices)
    if (d.is_cuda()) gpus.insert(cuda::device_properties(d).gpu);
  if (!built_with_nccl() || gpus.size() != devices.size())
    return local_backends(static_cast<int>(devices.size()));
  constexpr Milliseconds kToMeet(300'000);
  const std::shared_ptr<Store> store = memory_store();
  std::vector<std::shared_ptr<Backend>> backends(devices.size());
  on_workers(devices, [&](int r) {
    const auto at = static_cast<std::size_t>(r);
    backends[at] = nccl_backend(store, r, static_cast<int>(devices.size()), devices[at], kToMeet);
  });
  return backends;
}

// task(bytes) for the largest size and some smaller ones, as a line.
Line measured_line(std::int64_t largest, const std::function<double(std::int64_t)>& task) {
  std::vector<std::pair<double, double>> points;
  for (std::int64_t bytes = largest; bytes >= kSmallest; bytes /= 8) {
    task(bytes);  // memory is fetched, connections are made
    points.emplace_back(static_cast<double>(bytes), median_of(7, [&] { return task(bytes); }));
  }
  return fit_line(points);
}

// What every message of `tensors` costs that took `seconds` with `bytes` together, if each has that latency.
Line line_through(double latency_s, double tensors, double bytes, double seconds) {
  return {latency_s, std::max(0.0, seconds - tensors * latency_s) / bytes};
}

// Steps with the first model's parameters sent to the others' devices before and all gradients added to its
// own after, with what a step leaves in the caches.
void measure_master(Link& link, const Workload& w, const Models& models) {
  std::vector<std::vector<nn::Parameter>> parameters;
  std::vector<Device> first, others;
  for (const auto& model : models) {
    (parameters.empty() ? first : others).push_back(model->device());
    parameters.push_back(model->parameters());
  }
  const std::size_t tensors = parameters[0].size();
  // By workers; task(worker, parameter).
  const auto of_parameters = [&](const std::vector<Device>& at, const auto& task) {
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
    sent.push_back(of_parameters(others, [&](std::size_t i, std::size_t p) {
      parameters[i + 1][p]->detach().copy_(parameters[0][p]->detach());
    }));
  };
  const auto add = [&] {
    added.push_back(of_parameters(first, [&](std::size_t, std::size_t p) {
      for (std::size_t r = 1; r < models.size(); ++r)
        parameters[0][p]->grad().add_(parameters[r][p]->grad().to(first[0]));
    }));
  };
  const std::int64_t share = distributed::chunk_sizes(w.batch_size, models.size())[0];
  link.master =
      measure_contention(models, share, std::min(w.steps, 7) * passes_of(share, w.batch_size), send, add);
  const double from_others = static_cast<double>(others.size()),
               bytes = from_others * static_cast<double>(models[0]->parameter_bytes());
  link.broadcast =
      line_through(link.copy.latency_s, static_cast<double>(tensors), bytes, median(std::move(sent)));
  link.add = line_through(link.add.latency_s, from_others * static_cast<double>(tensors), bytes,
                          median(std::move(added)));
}

}  // namespace

AllReduce measure_all_reduce(ProcessGroup& group, WatchedModel& model, const Workload& w) {
  AllReduce result;
  if (group.size() == 1) return result;
  const Device device = model.device();
  const DeviceGuard guard(device);
  const Line line = measured_line(largest_message(model), [&](std::int64_t bytes) {
    const Tensor t = bytes_on(device, bytes);
    synchronize(device);
    group.barrier().wait();
    return seconds_of([&] {
      group.all_reduce(t, ReduceOp::mean).wait();
      synchronize(device);
    });
  });

  // By block: a bucket, what its mean takes once all are filled, and beside backward.
  Buckets buckets(model, group);
  const std::int64_t share = distributed::chunk_sizes(w.batch_size, static_cast<std::size_t>(w.devices))[0];
  const auto pass = [&](bool posts) {
    group.barrier().wait();
    buckets.posts = posts;
    const double own_s = seconds_of([&] {
      model.forward(share, buckets);
      buckets.backward();
    });
    return largest_of(group, device, {own_s})[0];
  };
  pass(false);
  const int passes = std::min(w.steps, 7);
  std::vector<double> after_s, longer, beside_s;
  for (int i = 0; i < passes; ++i) {  // in turn, so that all see the same machine
    const double without = pass(false);
    group.barrier().wait();
    after_s.push_back(seconds_of([&] { buckets.average_all(); }));
    longer.push_back(pass(true) - without);
    beside_s.push_back(buckets.posted_s());
  }
  buckets.posts = false;
  result.contention =
      measure_contention(group, model, buckets, share, passes * passes_of(share, w.batch_size));
  const auto count = static_cast<double>(model.count()), bytes = static_cast<double>(model.parameter_bytes());
  // What backward has just computed is no faster than what was just filled with zeros.
  const Line after = line_through(line.latency_s, count, bytes, median(std::move(after_s)));
  const Line all_reduce = {line.latency_s, std::max(line.s_per_byte, after.s_per_byte)};
  result.message = ring_message(all_reduce, group.size());
  const double beside = median(std::move(beside_s));
  if (beside == 0) return result;
  result.slower_beside = std::max(
      1.0, beside / ((count - 1) * all_reduce.latency_s + buckets.posted_bytes() * all_reduce.s_per_byte));
  result.stops_compute = std::clamp(median(std::move(longer)) / beside, 0.0, 1.0);
  return result;
}

Link measure_link(const Workload& w) {
  Link link;
  const std::vector<Device> devices = devices_of(w);
  if (devices.size() == 1) return link;
  // Each device's own worker fills its memory, so that what is copied is in its caches, not in the copier's.
  const std::vector<Device> from = {devices[0]}, to = {devices[1]};
  const auto transfer_s = [&](std::int64_t bytes, const auto& transfer) {
    Tensor source, there;
    on_workers(from, [&](int) {
      source = bytes_on(from[0], bytes);
      synchronize(from[0]);
    });
    double s = 0;
    on_workers(to, [&](int) {
      there = bytes_on(to[0], bytes);
      synchronize(to[0]);
      s = seconds_of([&] {
        transfer(source, there);
        synchronize(to[0]);
      });
    });
    return s;
  };
  Models models;
  for (const Device d : devices) models.push_back(std::make_unique<WatchedModel>(w, d));
  const std::int64_t largest = largest_message(*models[0]);
  link.copy = measured_line(largest, [&](std::int64_t bytes) {
    return transfer_s(bytes, [](const Tensor& source, const Tensor& there) { source.to(there.device()); });
  });
  link.add = measured_line(largest, [&](std::int64_t bytes) {
    return transfer_s(
        bytes, [](const Tensor& source, const Tensor& there) { there.add_(source.to(there.device())); });
  });
  measure_master(link, w, models);
  std::vector<std::shared_ptr<ProcessGroup>> groups(devices.size());
  const std::vector<std::shared_ptr<Backend>> backends = backends_of(devices);
  const std::shared_ptr<Store> store = memory_store();
  for (std::size_t r = 0; r < devices.size(); ++r)
    groups[r] = make_process_group(backends[r], store, {.check = false}, "devices");
  on_workers(devices, [&](int i) {
    const auto r = static_cast<std::size_t>(i);
    const AllReduce measured = measure_all_reduce(*groups[r], *models[r], w);
    if (r == 0) link.local = measured;
  });
  return link;
}

}  // namespace apps::compare
