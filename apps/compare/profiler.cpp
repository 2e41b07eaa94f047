#include "tapestry/apps/compare/profiler.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <functional>
#include <map>
#include <set>

#include "tapestry/apps/compare/watched_model.h"
#include "tapestry/autograd/engine.h"
#include "tapestry/autograd/ops/creation.h"
#include "tapestry/core/allocator.h"
#include "tapestry/core/error.h"
#include "tapestry/core/stream.h"
#include "tapestry/core/timeline.h"
#include "tapestry/core/worker.h"
#include "tapestry/distributed/data_parallel/steps.h"
#include "tapestry/nn/functional.h"

namespace apps::compare {

using namespace tapestry;

namespace {

using Clock = std::chrono::steady_clock;

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

double seconds_of(const std::function<void()>& task) {
  const Clock::time_point began = Clock::now();
  task();
  return std::chrono::duration<double>(Clock::now() - began).count();
}

using Models = std::vector<std::unique_ptr<WatchedModel>>;

// task(model) for the first `count` models, each on its device's worker, all at once.
void run_on(const Models& models, std::size_t count, const std::function<void(WatchedModel&)>& task) {
  std::vector<Device> devices;
  for (std::size_t i = 0; i < count; ++i) devices.push_back(models[i]->device());
  on_workers(devices, [&](int i) {
    WatchedModel& model = *models[static_cast<std::size_t>(i)];
    const DeviceGuard guard(model.device());
    task(model);
  });
}

// By a span's name, such as "forward 3": the median of its times where the first model trains alone.
std::map<std::string, double> measured_times(const Models& models, std::int64_t n,
                                             const ProfileOptions& options) {
  const auto passes = [&](int count) {
    run_on(models, 1, [&](WatchedModel& model) {
      SpanWatcher spans(model.device());
      for (int pass = 0; pass < count; ++pass) {
        model.forward(n, spans);
        model.backward();
        model.update(spans);
      }
    });
  };
  passes(options.warmup);
  const Timeline timeline;
  passes(options.passes);
  std::map<std::string, std::vector<double>> all;
  for (const Span& s : timeline.spans()) all[s.name].push_back(s.end - s.begin);
  std::map<std::string, double> medians;
  for (const auto& [name, times] : all) medians[name] = median(times);
  return medians;
}

// The first model's steps alone and those of all models at once, in turn, so that both see the same machine.
Contention measured_contention(const Models& models, std::int64_t n, const ProfileOptions& options) {
  Watcher nobody;
  const auto seconds = [&](std::size_t count) {
    std::array<double, 3> times{};
    times[0] = seconds_of([&] { run_on(models, count, [&](WatchedModel& m) { m.forward(n, nobody); }); });
    times[1] = seconds_of([&] { run_on(models, count, [](WatchedModel& m) { m.backward(); }); });
    times[2] = seconds_of([&] { run_on(models, count, [&](WatchedModel& m) { m.update(nobody); }); });
    return times;
  };
  for (int pass = 0; pass < options.warmup; ++pass) seconds(models.size());
  std::array<std::vector<double>, 3> alone, together;
  for (int pass = 0; pass < options.passes; ++pass) {
    const auto one = seconds(1), all = seconds(models.size());
    for (std::size_t i = 0; i < 3; ++i) {
      alone[i].push_back(one[i]);
      together[i].push_back(all[i]);
    }
  }
  const auto factor = [&](std::size_t i) { return std::max(1.0, median(together[i]) / median(alone[i])); };
  return {factor(0), factor(1), factor(2)};
}

// What happens to a block's gradients besides, in some modes.
struct GradientTimes {
  double accumulate_s = 0;  // where there were gradients already
  double copy_s = 0;        // into a bucket
};

// Block after block, so that a model larger than the caches is not found in them.
std::vector<GradientTimes> measured_gradients(const WatchedModel& model, const ProfileOptions& options) {
  const NoGradGuard no_grad;
  std::vector<std::vector<Tensor>> have(model.count()), come(model.count());
  for (std::size_t k = 0; k < model.count(); ++k)
    for (const nn::Parameter& p : model.block(k).module->parameters()) {
      have[k].push_back(zeros_like(p->detach()));
      come[k].push_back(zeros_like(p->detach()));
    }
  const auto medians = [&](const auto& task) {
    std::vector<std::vector<double>> times(model.count());
    for (int pass = 0; pass < options.passes; ++pass)
      for (std::size_t k = 0; k < model.count(); ++k)
        times[k].push_back(seconds_of([&] {
          for (std::size_t i = 0; i < have[k].size(); ++i) task(have[k][i], come[k][i]);
          synchronize(model.device());
        }));
    std::vector<double> all;
    for (std::vector<double>& of_block : times) all.push_back(median(std::move(of_block)));
    return all;
  };
  const std::vector<double> added = medians([](Tensor& a, const Tensor& b) { a.add_(b); });
  const std::vector<double> copied = medians([](Tensor& a, const Tensor& b) { a.copy_(b); });
  std::vector<GradientTimes> blocks;
  for (std::size_t k = 0; k < model.count(); ++k) blocks.push_back({added[k], copied[k]});
  return blocks;
}

struct BlockBytes {
  double kept = 0, output = 0, forward_extra = 0, backward_extra = 0;
};

// Counts what its device's allocator holds.
class ByteWatcher : public Watcher {
 public:
  explicit ByteWatcher(const WatchedModel& model) : device_(model.device()), bytes_(model.count() + 1) {}
  void enter(Activity activity, std::size_t k) override {
    leave();
    if (activity == Activity::optimizer) return;
    at_ = &bytes_[k];
    forward_ = activity == Activity::forward;
    before_ = allocated();
    reset_peak_memory(device_);
  }
  void leave() override {
    if (!at_) return;
    const auto peak = static_cast<double>(memory_stats(device_).peak_allocated);
    if (forward_) {
      at_->kept = allocated() - before_;
      at_->forward_extra = peak - allocated();
    } else {
      at_->backward_extra = peak - before_;
    }
    at_ = nullptr;
  }
  std::vector<BlockBytes>& bytes() { return bytes_; }

 private:
  double allocated() const { return static_cast<double>(memory_stats(device_).allocated); }
  Device device_;
  std::vector<BlockBytes> bytes_;  // by block, and of the loss
  BlockBytes* at_ = nullptr;
  bool forward_ = false;
  double before_ = 0;
};

std::vector<BlockBytes> measured_bytes(WatchedModel& model, std::int64_t n) {
  ByteWatcher watcher(model);
  model.forward(n, watcher);
  model.backward();
  const NoGradGuard no_grad;
  Tensor x = model.images(n);
  for (std::size_t k = 0; k <= model.count(); ++k) {
    x = k < model.count() ? (*model.block(k).module)(x) : cross_entropy(x, model.labels(n));
    watcher.bytes()[k].output = static_cast<double>(x.nbytes());
  }
  return watcher.bytes();
}

// Backward in two halves, as Schedule::zero_bubble does it.
struct Halves {
  double inputs_s = 0, weights_s = 0;
  double freed_bytes = 0;  // by the first one
};

// By block, from leaves of its own. First all of the first halves, so that the second ones come late.
std::vector<Halves> halves_of_pass(const WatchedModel& model, std::int64_t n) {
  const std::size_t count = model.count();
  for (std::size_t k = 0; k < count; ++k)
    for (const nn::Parameter& p : model.block(k).module->parameters()) p->set_grad({});
  std::vector<Tensor> inputs, outputs;
  Tensor x = model.images(n);
  for (std::size_t k = 0; k < count; ++k) {
    inputs.push_back(k > 0 ? x.detach().set_requires_grad() : x);
    x = (*model.block(k).module)(inputs[k]);
    outputs.push_back(x);
  }
  x = x.detach().set_requires_grad();
  cross_entropy(x, model.labels(n)).backward();
  Tensor gradient = x.grad();
  x = {};

  std::vector<Halves> halves(count);
  std::vector<autograd::WeightGradients> weights(count);
  const auto allocated = [&] {  // but for the gradient that is on its way
    return static_cast<double>(memory_stats(model.device()).allocated) -
           static_cast<double>(gradient.nbytes());
  };
  const auto timed = [&](const auto& task) {
    return seconds_of([&] {
      task();
      synchronize(model.device());
    });
  };
  for (std::size_t k = count; k-- > 1;) {
    const double before = allocated();
    halves[k].inputs_s = timed(
        [&] { gradient = autograd::backward_inputs({outputs[k]}, {inputs[k]}, {gradient}, weights[k])[0]; });
    outputs[k] = inputs[k] = {};
    halves[k].freed_bytes = before - allocated();
  }
  for (std::size_t k = count; k-- > 1;) halves[k].weights_s = timed([&] { weights[k].accumulate(); });
  return halves;
}

std::vector<Halves> measured_halves(const WatchedModel& model, std::int64_t n,
                                    const ProfileOptions& options) {
  std::vector<std::vector<Halves>> passes;
  for (int pass = 0; pass < options.warmup; ++pass) halves_of_pass(model, n);
  for (int pass = 0; pass < options.passes; ++pass) passes.push_back(halves_of_pass(model, n));
  std::vector<Halves> blocks = passes.back();
  const auto median_of = [&](std::size_t k, double Halves::*what) {
    std::vector<double> times;
    for (const std::vector<Halves>& pass : passes) times.push_back(pass[k].*what);
    return median(std::move(times));
  };
  for (std::size_t k = 0; k < blocks.size(); ++k) {
    blocks[k].inputs_s = median_of(k, &Halves::inputs_s);
    blocks[k].weights_s = median_of(k, &Halves::weights_s);
  }
  return blocks;
}

double measured_handoff(const std::vector<Device>& devices) {
  std::vector<double> times;
  for (int i = 0; i < 101; ++i) times.push_back(seconds_of([&] { on_workers(devices, [](int) {}); }));
  return median(times);
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
  const std::vector<Device> devices = devices_of(w);
  Models models;
  for (const Device d : devices) models.push_back(std::make_unique<WatchedModel>(w, d));
  const WatchedModel& first = *models[0];
  const std::size_t count = first.count();

  std::vector<std::map<std::string, double>> times;
  std::vector<std::vector<BlockBytes>> bytes(sizes.size());
  std::vector<GradientTimes> gradients;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    times.push_back(measured_times(models, sizes[i], options));
    run_on(models, 1, [&](WatchedModel& model) { bytes[i] = measured_bytes(model, sizes[i]); });
  }
  const std::int64_t micro_batch = std::max<std::int64_t>(1, w.batch_size / w.micro_batches);
  std::vector<Halves> halves;
  run_on(models, 1, [&](WatchedModel& model) {
    halves = measured_halves(model, micro_batch, options);
    gradients = measured_gradients(model, options);
  });
  const double update_per_byte = times.back().at("update 0") / static_cast<double>(first.parameter_bytes());

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
    b.name = first.block(k).name;
    for (const nn::Parameter& p : first.block(k).module->parameters())
      b.parameter_bytes.push_back(static_cast<std::int64_t>(p->nbytes()));
    b.update_s = update_per_byte * static_cast<double>(b.all_parameter_bytes());
    b.accumulate_s = gradients[k].accumulate_s;
    b.copy_s = gradients[k].copy_s;
    b.inputs_s = halves[k].inputs_s;
    b.weights_s = halves[k].weights_s;
    if (k > 0) b.postponed_bytes = b.kept_bytes.at(static_cast<double>(micro_batch)) - halves[k].freed_bytes;
    profile.blocks.push_back(std::move(b));
  }
  const auto per_sample = [&](const Tensor& t) {
    return static_cast<double>(t.nbytes()) / static_cast<double>(t.size(0));
  };
  profile.image_bytes = per_sample(first.images(1));
  profile.label_bytes = per_sample(first.labels(1));
  if (devices.size() == 1) return profile;

  const std::int64_t share = distributed::shares_of(w.batch_size, devices.size())[0];
  profile.contention = measured_contention(models, share, options);
  profile.handoff_s = measured_handoff(devices);
  return profile;
}

}  // namespace apps::compare
