#include "tapestry/apps/compare/profiler.h"

#include <algorithm>
#include <chrono>
#include <map>
#include <set>

#include "tapestry/autograd/engine.h"
#include "tapestry/autograd/ops/creation.h"
#include "tapestry/core/allocator.h"
#include "tapestry/core/error.h"
#include "tapestry/core/stream.h"
#include "tapestry/core/timeline.h"
#include "tapestry/core/worker.h"
#include "tapestry/distributed/data_parallel/steps.h"
#include "tapestry/nn/functional.h"
#include "tapestry/nn/optim/sgd.h"

namespace apps::compare {

using namespace tapestry;

namespace {

using Clock = std::chrono::steady_clock;

constexpr const char* kAccumulate = "accumulate";

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// The model on one device, which can be run block by block: each from leaves of its own, so that its backward
// pass is its own too.
class Cut {
 public:
  Cut(const Workload& w, Device device) : device_(device), blocks_(make_blocks(w)) {
    for (const Block& b : blocks_) {
      b.module->to(device);
      std::vector<nn::Parameter> parameters = b.module->parameters();
      optimizers_.push_back(parameters.empty() ? nullptr
                                               : std::make_unique<optim::SGD>(
                                                     std::move(parameters), optim::SGD::Options{.lr = w.lr}));
    }
    batch_ = make_batch(w);
    batch_ = {batch_.images.to(device), batch_.labels.to(device)};
  }
  std::size_t count() const { return blocks_.size(); }
  const Block& block(std::size_t k) const { return blocks_[k]; }
  Tensor images(std::int64_t n) const { return batch_.images.narrow(0, 0, n); }
  Tensor labels(std::int64_t n) const { return batch_.labels.narrow(0, 0, n); }

  /// A step, with a span for everything. around(k, backward) is called before and after each backward pass,
  /// k = count() is the loss.
  template <class F>
  void step(std::int64_t n, const F& around) {
    std::vector<Tensor> inputs, outputs;
    Tensor x = images(n);
    for (std::size_t k = 0; k < count(); ++k) {
      inputs.push_back(x.detach());
      if (k > 0) inputs[k].set_requires_grad();  // nobody asks for the images' gradient
      const SpanScope span(device_, Activity::forward, "forward", static_cast<int>(k));
      outputs.push_back((*blocks_[k].module)(inputs[k]));
      x = outputs[k];
    }
    Tensor last = x.detach(), loss;
    x = {};
    last.set_requires_grad();
    {
      const SpanScope span(device_, Activity::forward, "forward", static_cast<int>(count()));
      loss = cross_entropy(last, labels(n));
    }
    around(count(), [&] {
      const SpanScope span(device_, Activity::backward, "backward", static_cast<int>(count()));
      loss.backward();
    });
    Tensor gradient = last.grad();
    last = {};
    for (std::size_t k = count(); k-- > 0;) {
      around(k, [&] {
        const SpanScope span(device_, Activity::backward, "backward", static_cast<int>(k));
        outputs[k].backward(gradient);
        gradient = inputs[k].grad();
        outputs[k] = inputs[k] = {};  // memory is freed as backward goes on, as in the whole model
      });
    }
    for (std::size_t k = 0; k < count(); ++k) {
      if (!optimizers_[k]) continue;
      const SpanScope span(device_, Activity::optimizer, "update", static_cast<int>(k));
      optimizers_[k]->step();
      optimizers_[k]->zero_grad();
    }
  }
  void step(std::int64_t n) {
    step(n, [](std::size_t, const auto& backward) { backward(); });
  }

  /// What backward does besides where there are gradients already.
  void accumulate() {
    const NoGradGuard no_grad;
    for (std::size_t k = 0; k < count(); ++k) {
      std::vector<Tensor> have, come;
      for (const nn::Parameter& p : blocks_[k].module->parameters()) {
        have.push_back(zeros_like(p->detach()));
        come.push_back(zeros_like(p->detach()));
      }
      const SpanScope span(device_, Activity::backward, kAccumulate, static_cast<int>(k));
      for (std::size_t i = 0; i < have.size(); ++i) have[i].add_(come[i]);
    }
  }

 private:
  Device device_;
  std::vector<Block> blocks_;
  std::vector<std::unique_ptr<optim::SGD>> optimizers_;  // null for a block without parameters
  Batch batch_;
};

// On the devices' workers, all at once.
void run_on(const std::vector<Device>& devices, const std::function<void(std::size_t)>& task) {
  on_workers(devices, [&](int i) {
    const auto at = static_cast<std::size_t>(i);
    const DeviceGuard guard(devices[at]);
    task(at);
  });
}

// By a span's name, such as "forward 3": the median of its times on the first device.
std::map<std::string, double> measured_times(const std::vector<Device>& devices,
                                             const std::vector<std::unique_ptr<Cut>>& cuts, std::int64_t n,
                                             const ProfileOptions& options) {
  const auto passes = [&](int count) {
    run_on(devices, [&](std::size_t i) {
      for (int pass = 0; pass < count; ++pass) {
        cuts[i]->step(n);
        cuts[i]->accumulate();
      }
    });
  };
  passes(options.warmup);
  const Timeline timeline;
  passes(options.passes);
  std::map<std::string, std::vector<double>> all;
  for (const Span& s : timeline.spans())
    if (s.row == devices[0].str()) all[s.name].push_back(s.end - s.begin);
  std::map<std::string, double> medians;
  for (const auto& [name, times] : all) medians[name] = median(times);
  return medians;
}

struct BlockBytes {
  double kept = 0, output = 0, forward_extra = 0, backward_extra = 0;
};

// By block, and of the loss.
std::vector<BlockBytes> measured_bytes(Device device, Cut& cut, std::int64_t n) {
  std::vector<BlockBytes> bytes(cut.count() + 1);
  const auto allocated = [&] { return static_cast<double>(memory_stats(device).allocated); };
  const auto peak = [&] { return static_cast<double>(memory_stats(device).peak_allocated); };
  {
    Tensor x = cut.images(n);
    for (std::size_t k = 0; k <= cut.count(); ++k) {
      const double before = allocated();
      reset_peak_memory(device);
      x = k < cut.count() ? (*cut.block(k).module)(x) : cross_entropy(x, cut.labels(n));
      bytes[k].output = static_cast<double>(x.nbytes());
      bytes[k].kept = allocated() - before;
      bytes[k].forward_extra = peak() - allocated();
    }
  }
  cut.step(n, [&](std::size_t k, const auto& backward) {
    const double before = allocated();
    reset_peak_memory(device);
    backward();
    bytes[k].backward_extra = peak() - before;
  });
  return bytes;
}

double measured_handoff(const std::vector<Device>& devices) {
  std::vector<double> times;
  for (int i = 0; i < 101; ++i) {
    const Clock::time_point began = Clock::now();
    on_workers(devices, [](int) {});
    times.push_back(std::chrono::duration<double>(Clock::now() - began).count());
  }
  return median(times);
}

// Of all blocks and the loss.
double sum_of(const std::map<std::string, double>& times, const std::string& what) {
  double sum = 0;
  for (const auto& [name, time] : times)
    if (name.starts_with(what + " ")) sum += time;
  return sum;
}

}  // namespace

std::vector<std::int64_t> profile_sizes(const Workload& w, const std::vector<int>& further_devices) {
  std::set<std::int64_t> sizes = {w.batch_size, std::max<std::int64_t>(1, w.batch_size / w.micro_batches)};
  std::vector<int> devices = further_devices;
  devices.push_back(w.devices);
  for (const int n : devices)
    sizes.insert(distributed::shares_of(w.batch_size, static_cast<std::size_t>(n))[0]);
  return {sizes.begin(), sizes.end()};
}

Profile measure_profile(const Workload& w, const std::vector<std::int64_t>& sizes,
                        const ProfileOptions& options) {
  check(!sizes.empty() && options.passes >= 1, "[measure_profile] ", sizes.size(), " sizes, ", options.passes,
        " passes; give one or more of each");
  const std::vector<Device> devices = devices_of(w), first = {devices[0]};
  std::vector<std::unique_ptr<Cut>> cuts;
  for (const Device d : devices) cuts.push_back(std::make_unique<Cut>(w, d));
  const std::size_t count = cuts[0]->count();

  std::vector<std::map<std::string, double>> times;
  std::vector<std::vector<BlockBytes>> bytes(sizes.size());
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    times.push_back(measured_times(first, cuts, sizes[i], options));
    run_on(first, [&](std::size_t) { bytes[i] = measured_bytes(devices[0], *cuts[0], sizes[i]); });
  }

  Profile profile;
  for (std::size_t k = 0; k <= count; ++k) {
    const std::string number = " " + std::to_string(k);
    BlockProfile b;
    const auto timed = [&](const std::string& name) {
      std::vector<std::pair<double, double>> points;
      for (std::size_t i = 0; i < sizes.size(); ++i)
        points.emplace_back(static_cast<double>(sizes[i]), times[i].at(name + number));
      return Curve(std::move(points));
    };
    const auto counted = [&](double BlockBytes::*what) {
      std::vector<std::pair<double, double>> points;
      for (std::size_t i = 0; i < sizes.size(); ++i)
        points.emplace_back(static_cast<double>(sizes[i]), bytes[i][k].*what);
      return Curve(std::move(points));
    };
    b.forward_s = timed("forward");
    b.backward_s = timed("backward");
    b.kept_bytes = counted(&BlockBytes::kept);
    b.output_bytes = counted(&BlockBytes::output);
    b.forward_extra_bytes = counted(&BlockBytes::forward_extra);
    b.backward_extra_bytes = counted(&BlockBytes::backward_extra);
    if (k == count) {
      b.name = "loss";
      profile.loss = std::move(b);
      break;
    }
    b.name = cuts[0]->block(k).name;
    for (const nn::Parameter& p : cuts[0]->block(k).module->parameters())
      b.parameter_bytes.push_back(static_cast<std::int64_t>(p->nbytes()));
    if (!b.parameter_bytes.empty()) {
      b.update_s = times[0].at("update" + number);
      b.accumulate_s = times[0].at(kAccumulate + number);
    }
    profile.blocks.push_back(std::move(b));
  }
  const auto per_sample = [&](const Tensor& t) {
    return static_cast<double>(t.nbytes()) / static_cast<double>(t.size(0));
  };
  profile.image_bytes = per_sample(cuts[0]->images(1));
  profile.label_bytes = per_sample(cuts[0]->labels(1));
  if (devices.size() == 1) return profile;

  const std::int64_t share = distributed::shares_of(w.batch_size, devices.size())[0];
  const auto alone = measured_times(first, cuts, share, options);
  const auto together = measured_times(devices, cuts, share, options);
  const auto factor = [&](const char* what) {
    return std::max(1.0, sum_of(together, what) / sum_of(alone, what));
  };
  profile.contention = {factor("forward"), factor("backward"), factor("update")};
  profile.handoff_s = measured_handoff(devices);
  return profile;
}

}  // namespace apps::compare
