#include "tapestry/apps/compare/profiler.h"

#include <algorithm>
#include <functional>
#include <map>
#include <numeric>
#include <set>

#include "tapestry/apps/compare/contention.h"
#include "tapestry/apps/compare/split.h"
#include "tapestry/apps/compare/timing.h"
#include "tapestry/apps/compare/watched_model.h"
#include "tapestry/autograd/engine.h"
#include "tapestry/autograd/ops/creation.h"
#include "tapestry/core/allocator.h"
#include "tapestry/core/error.h"
#include "tapestry/core/stream.h"
#include "tapestry/core/timeline.h"
#include "tapestry/core/internal/worker.h"
#include "tapestry/distributed/common/batch.h"
#include "tapestry/nn/functional.h"

namespace apps::compare {

using namespace tapestry;

namespace {

void on_worker_of(WatchedModel& model, const std::function<void()>& task) {
  const std::vector<Device> device = {model.device()};
  on_workers(device, [&](int) {
    const DeviceGuard guard(device[0]);
    task();
  });
}

// By size, and by a span's name, such as "forward 3", its time where the model trains alone: the median of
// means over as many passes as a batch has shares of that size, for a step waits for all of them, the slower
// ones too. All sizes in turn, and each for as long, so that they see the same machine.
std::vector<std::map<std::string, double>> measured_times(WatchedModel& model,
                                                          const std::vector<std::int64_t>& sizes,
                                                          const ProfileOptions& options) {
  const auto passes = [&](std::int64_t n, int count) {
    on_worker_of(model, [&] {
      SpanWatcher spans(model.device());
      for (int pass = 0; pass < count; ++pass) {
        model.forward(n, spans);
        model.backward();
        model.update(spans);
      }
    });
  };
  for (const std::int64_t n : sizes) passes(n, options.warmup);
  std::vector<std::map<std::string, std::vector<double>>> all(sizes.size());
  for (int turn = 0; turn < options.passes; ++turn)
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      passes(sizes[i], 1);  // finds in the caches what another size left
      const int count = passes_of(sizes[i], sizes.back());
      const Timeline timeline;
      passes(sizes[i], count);
      std::map<std::string, double> sums;
      for (const Span& s : timeline.spans()) sums[s.name] += s.end - s.begin;
      for (const auto& [name, sum] : sums) all[i][name].push_back(sum / count);
    }
  std::vector<std::map<std::string, double>> medians(sizes.size());
  for (std::size_t i = 0; i < sizes.size(); ++i)
    for (const auto& [name, times] : all[i]) medians[i][name] = median(times);
  return medians;
}

// By block, how much longer backward takes that finds gradients to add its own to than the one before it,
// that finds none.
std::vector<double> measured_accumulation(WatchedModel& model, std::int64_t n,
                                          const ProfileOptions& options) {
  const auto passes = [&](int count) {
    on_worker_of(model, [&] {
      SpanWatcher spans(model.device());
      for (int pass = 0; pass < count; ++pass)
        for (const bool adds : {false, true}) {
          model.forward(n, spans, adds);
          model.backward();
        }
    });
  };
  passes(1);
  const Timeline timeline;
  passes(options.passes);
  std::map<std::string, std::vector<double>> times;  // in the order of time
  for (const Span& s : timeline.spans()) times[s.name].push_back(s.end - s.begin);
  std::vector<double> longer;
  for (std::size_t k = 0; k < model.count(); ++k) {
    const std::vector<double>& of_block = times.at("backward " + std::to_string(k));
    std::vector<double> differences;
    for (std::size_t i = 1; i < of_block.size(); i += 2) differences.push_back(of_block[i] - of_block[i - 1]);
    longer.push_back(std::max(0.0, median(std::move(differences))));
  }
  return longer;
}

// Of the gradients of a block into their buckets; block after block, so that a model larger than the caches
// is not found in them.
std::vector<double> measured_copies(const WatchedModel& model, const ProfileOptions& options) {
  const NoGradGuard no_grad;
  std::vector<std::vector<Tensor>> buckets(model.count()), gradients(model.count());
  for (std::size_t k = 0; k < model.count(); ++k)
    for (const nn::Parameter& p : model.block(k).module->parameters()) {
      buckets[k].push_back(zeros_like(p->detach()));
      gradients[k].push_back(zeros_like(p->detach()));
    }
  std::vector<std::vector<double>> times(model.count());
  for (int pass = 0; pass < options.passes; ++pass)
    for (std::size_t k = 0; k < model.count(); ++k)
      times[k].push_back(seconds_of([&] {
        for (std::size_t i = 0; i < buckets[k].size(); ++i) buckets[k][i].copy_(gradients[k][i]);
        synchronize(model.device());
      }));
  std::vector<double> medians;
  for (std::vector<double>& of_block : times) medians.push_back(median(std::move(of_block)));
  return medians;
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
std::vector<Halves> halves_of_pass(const WatchedModel& model, std::int64_t n, bool keep_gradients) {
  const std::size_t count = model.count();
  for (std::size_t k = 0; k < count && !keep_gradients; ++k)
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

// Fills in what a block's profile says of them.
void measure_halves(std::vector<BlockProfile>& blocks, const WatchedModel& model, std::int64_t n,
                    const ProfileOptions& options) {
  std::vector<std::vector<Halves>> first, added;
  for (int pass = 0; pass < options.warmup; ++pass) halves_of_pass(model, n, false);
  for (int pass = 0; pass < options.passes; ++pass) {
    first.push_back(halves_of_pass(model, n, false));
    added.push_back(halves_of_pass(model, n, true));
  }
  for (std::size_t k = 1; k < blocks.size(); ++k) {
    const auto median_of = [&](const std::vector<std::vector<Halves>>& passes, double Halves::*what) {
      std::vector<double> times;
      for (const std::vector<Halves>& pass : passes) times.push_back(pass[k].*what);
      return median(std::move(times));
    };
    BlockProfile& b = blocks[k];
    b.inputs_s = median_of(first, &Halves::inputs_s);
    b.weights_s = median_of(first, &Halves::weights_s);
    b.weights_added_s = median_of(added, &Halves::weights_s);
    b.postponed_bytes = b.kept_bytes.at(static_cast<double>(n)) - first.back()[k].freed_bytes;
  }
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
    sizes.insert(distributed::chunk_sizes(w.batch_size, static_cast<std::size_t>(n))[0]);
  return {sizes.begin(), sizes.end()};
}

Profile measure_profile(const Workload& w, const std::vector<std::int64_t>& sizes,
                        const ProfileOptions& options) {
  check(!sizes.empty() && options.passes >= 1, "[measure_profile] ", sizes.size(), " sizes, ", options.passes,
        " passes; give one or more of each");
  const std::vector<Device> devices = devices_of(w);
  Models models;
  for (const Device d : devices) models.push_back(std::make_unique<WatchedModel>(w, d));
  WatchedModel& first = *models[0];
  const std::size_t count = first.count();

  const std::vector<std::map<std::string, double>> times = measured_times(first, sizes, options);
  std::vector<std::vector<BlockBytes>> bytes(sizes.size());
  for (std::size_t i = 0; i < sizes.size(); ++i)
    on_worker_of(first, [&] { bytes[i] = measured_bytes(first, sizes[i]); });
  const std::int64_t micro_batch = std::max<std::int64_t>(1, w.batch_size / w.micro_batches);
  const ProfileOptions of_micro_batches{.warmup = options.warmup,
                                        .passes = options.passes * passes_of(micro_batch, w.batch_size)};
  const std::vector<double> accumulation = measured_accumulation(first, micro_batch, of_micro_batches);
  std::vector<double> copies;
  on_worker_of(first, [&] { copies = measured_copies(first, options); });
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
    b.accumulate_s = accumulation[k];
    b.copy_s = copies[k];
    profile.blocks.push_back(std::move(b));
  }
  on_worker_of(first, [&] { measure_halves(profile.blocks, first, micro_batch, of_micro_batches); });
  const auto per_sample = [&](const Tensor& t) {
    return static_cast<double>(t.nbytes()) / static_cast<double>(t.size(0));
  };
  profile.image_bytes = per_sample(first.images(1));
  profile.label_bytes = per_sample(first.labels(1));
  if (devices.size() == 1) return profile;

  const std::int64_t share = distributed::chunk_sizes(w.batch_size, devices.size())[0];
  profile.contention = measure_contention(models, share, options.passes * passes_of(share, w.batch_size));
  std::vector<int> split = w.split;
  if (split.empty() && count >= devices.size())
    split = balanced_split(profile.costs(static_cast<double>(micro_batch)), w.devices);
  if (split.size() == devices.size() &&
      std::accumulate(split.begin(), split.end(), std::size_t{0}) == count) {
    profile.parts = measure_part_contention(models, split, micro_batch, of_micro_batches.passes);
    profile.parts_in_halves = measure_parts_in_halves(models, split, micro_batch, of_micro_batches.passes);
  }
  profile.handoff_s = measured_handoff(devices);
  return profile;
}

}  // namespace apps::compare
