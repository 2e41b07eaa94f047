#include "tapestry/apps/compare/link.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <functional>
#include <set>

#include "tapestry/autograd/ops/creation.h"
#include "tapestry/autograd/ops/matmul.h"
#include "tapestry/core/context.h"
#include "tapestry/core/cuda/device.h"
#include "tapestry/core/stream.h"
#include "tapestry/core/worker.h"

namespace apps::compare {

using namespace tapestry;
using namespace tapestry::distributed;

namespace {

using Clock = std::chrono::steady_clock;

// From what latency decides to what bandwidth does; the largest is that of a full bucket, about.
constexpr std::int64_t kSizes[] = {std::int64_t{1} << 14, std::int64_t{1} << 17, std::int64_t{1} << 20,
                                   std::int64_t{1} << 22, std::int64_t{1} << 24};

double seconds_of(const std::function<void()>& task) {
  const Clock::time_point began = Clock::now();
  task();
  return std::chrono::duration<double>(Clock::now() - began).count();
}

double median_of(int times, const std::function<double()>& measured) {
  std::vector<double> values;
  for (int i = 0; i < times; ++i) values.push_back(measured());
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
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

// task(bytes) for each size, as a line.
Line measured_line(const std::function<double(std::int64_t)>& task) {
  std::vector<std::pair<double, double>> points;
  for (const std::int64_t bytes : kSizes) {
    task(bytes);  // memory is fetched, connections are made
    points.emplace_back(static_cast<double>(bytes), median_of(7, [&] { return task(bytes); }));
  }
  return fit_line(points);
}

}  // namespace

AllReduce measure_all_reduce(ProcessGroup& group, Device device) {
  AllReduce result;
  if (group.size() == 1) return result;
  const DeviceGuard guard(device);
  const auto reduce_s = [&](std::int64_t bytes) {
    const Tensor t = bytes_on(device, bytes);
    synchronize(device);
    group.barrier().wait();
    return seconds_of([&] {
      group.all_reduce(t, ReduceOp::mean).wait();
      synchronize(device);
    });
  };
  result.message = ring_message(measured_line(reduce_s), group.size());

  // A fixed amount of work, alone and beside sums that end before it.
  constexpr std::int64_t kBytes = std::int64_t{1} << 22;
  constexpr int kSums = 4;
  const Tensor a = ones({256, 256}, device);
  std::vector<Tensor> sums;
  for (int i = 0; i < kSums; ++i) sums.push_back(bytes_on(device, kBytes));
  const auto compute = [&](std::int64_t products) {
    for (std::int64_t i = 0; i < products; ++i) matmul(a, a);
    synchronize(device);
  };
  compute(3);
  const double sums_s = kSums * ring_time(result.message, static_cast<double>(kBytes), group.size());
  const double product_s = median_of(7, [&] { return seconds_of([&] { compute(4); }) / 4; });
  const Tensor products = full({1}, std::ceil(3 * sums_s / product_s), {DType::f32, device});
  group.broadcast(products).wait();  // all do as much as the first rank
  const auto count = static_cast<std::int64_t>(products.item());
  const auto busy_s = [&](bool with_sums) {
    group.barrier().wait();
    std::vector<Work> works;
    const double s = seconds_of([&] {
      for (const Tensor& t : sums)
        if (with_sums) works.push_back(group.all_reduce(t, ReduceOp::mean));
      compute(count);
    });
    for (const Work& work : works) work.wait();
    return s;
  };
  std::vector<double> later;  // alone and beside in turn, so that both see the same machine
  for (int i = 0; i < 9; ++i) {
    const double alone = busy_s(false);
    later.push_back(busy_s(true) - alone);
  }
  std::sort(later.begin(), later.end());
  result.stops_compute = std::clamp(later[later.size() / 2] / sums_s, 0.0, 1.0);
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
  link.copy = measured_line([&](std::int64_t bytes) {
    return transfer_s(bytes, [](const Tensor& source, const Tensor& there) { source.to(there.device()); });
  });
  link.add = measured_line([&](std::int64_t bytes) {
    return transfer_s(
        bytes, [](const Tensor& source, const Tensor& there) { there.add_(source.to(there.device())); });
  });
  std::vector<std::shared_ptr<ProcessGroup>> groups(devices.size());
  const std::vector<std::shared_ptr<Backend>> backends = backends_of(devices);
  const std::shared_ptr<Store> store = memory_store();
  for (std::size_t r = 0; r < devices.size(); ++r)
    groups[r] = make_process_group(backends[r], store, {.check = false}, "devices");
  on_workers(devices, [&](int i) {
    const auto r = static_cast<std::size_t>(i);
    const AllReduce measured = measure_all_reduce(*groups[r], devices[r]);
    if (r == 0) link.local = measured;
  });
  return link;
}

}  // namespace apps::compare
