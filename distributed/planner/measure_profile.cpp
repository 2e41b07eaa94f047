#include "tapestry/distributed/planner/internal/measure_profile.h"

#include <algorithm>
#include <array>
#include <functional>
#include <map>
#include <numeric>
#include <optional>
#include <set>

#include "tapestry/autograd/engine.h"
#include "tapestry/autograd/ops/creation.h"
#include "tapestry/core/allocator.h"
#include "tapestry/core/error.h"
#include "tapestry/core/internal/worker.h"
#include "tapestry/core/stream.h"
#include "tapestry/core/timeline.h"
#include "tapestry/distributed/common/batch.h"
#include "tapestry/distributed/context/attention.h"
#include "tapestry/distributed/planner/internal/contention.h"
#include "tapestry/distributed/planner/internal/profiled_model.h"
#include "tapestry/distributed/planner/internal/timing.h"

namespace tapestry::distributed::planner {

namespace {

constexpr const char* kBeside = "beside ";  // in front of a span's name: attention of a ring in it

void on_worker_of(ProfiledModel& model, const std::function<void()>& task) {
  const std::vector<Device> device = {model.device()};
  on_workers(device, [&](int) {
    const DeviceGuard guard(device[0]);
    task();
  });
}

// Returns for each batch size the time of each span, such as "forward 3", while one device trains alone. One
// measurement is the mean over as many passes as process the whole batch. It is not the median, because slow
// passes slow down real training too. The result is the median of several measurements. The sizes take turns
// and are measured for the same time, so that all see the same state of the machine.
std::vector<std::map<std::string, double>> measure_times(ProfiledModel& model,
                                                         const std::vector<std::int64_t>& sizes,
                                                         const MeasureOptions& options) {
  const auto passes = [&](std::int64_t n, int count) {
    on_worker_of(model, [&] {
      SpanObserver spans(model.device());
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
      passes(sizes[i], 1);  // warms the caches, which hold the data of another size
      const int count = passes_of(sizes[i], sizes.back());
      const Timeline timeline;
      passes(sizes[i], count);
      std::map<std::string, double> sums;
      const std::vector<Span> spans = timeline.spans();
      const auto is_step = [](const Span& s) { return s.name.starts_with(kRingStep); };
      for (const Span& s : spans) {
        const bool waits = s.activity == Activity::communication;
        if (!waits && !is_step(s)) {
          sums[s.name] += s.end - s.begin;
          continue;
        }
        // The span of a block contains the waits of its divided layers. They are subtracted, because the
        // planner predicts them from the bytes that ranks send.
        for (const Span& of_block : spans)
          if (of_block.activity != Activity::communication && !is_step(of_block) &&
              of_block.begin <= s.begin && s.end <= of_block.end)
            sums[waits ? of_block.name : kBeside + of_block.name] += (waits ? -1 : 1) * (s.end - s.begin);
      }
      for (const auto& [name, sum] : sums) all[i][name].push_back(sum / count);
    }
  std::vector<std::map<std::string, double>> medians(sizes.size());
  for (std::size_t i = 0; i < sizes.size(); ++i)
    for (const auto& [name, times] : all[i]) medians[i][name] = median(times);
  return medians;
}

// Returns for each block how much longer a backward takes that adds to existing gradients than one without
// existing gradients.
std::vector<double> measure_accumulation(ProfiledModel& model, std::int64_t n,
                                         const MeasureOptions& options) {
  const auto passes = [&](int count) {
    on_worker_of(model, [&] {
      SpanObserver spans(model.device());
      for (int pass = 0; pass < count; ++pass)
        for (const bool accumulates : {false, true}) {
          model.forward(n, spans, accumulates);
          model.backward();
        }
    });
  };
  passes(1);
  const Timeline timeline;
  passes(options.passes);
  std::map<std::string, std::vector<double>> times;  // per span name, in chronological order
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

// Returns for each block the time of copying its gradients into their buckets. Each pass copies all blocks,
// so that the caches hold no gradients of a model that is larger than the caches.
std::vector<double> measure_bucket_copies(const ProfiledModel& model, const MeasureOptions& options) {
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

struct IntervalBytes {
  int parameter = -1;
  double peak = 0, accumulate = 0, end = 0;
};
struct BlockBytes {
  double saved = 0, output = 0, freed_input = 0, unsaved_output = 0, received_extra = 0, forward_extra = 0;
  std::vector<IntervalBytes> backward;
  SplitPassMemory input_grad, weight_grad, weight_grad_accumulate;
};

// Measures memory through the statistics of the device's allocator.
class ByteObserver : public StepObserver {
 public:
  ByteObserver(ProfiledModel& model, std::int64_t n)
      : model_(model),
        n_(n),
        device_(model.device()),
        bytes_(model.count() + 1),
        begin_(bytes_.size()),
        held_(bytes_.size() + 1) {
    const NoGradGuard no_grad;
    model.call([&] {
      Tensor x = model.inputs(n);
      for (std::size_t k = 0; k <= model.count(); ++k) {
        x = k < model.count() ? (*model.block(k).module)(x) : model.loss(x, model.targets(n));
        bytes_[k].output = static_cast<double>(x.nbytes());
      }
    });
  }
  const std::vector<BlockBytes>& bytes() const { return bytes_; }

  // Measures two steps: one frees each gradient when it has arrived, the other adds to existing gradients.
  void measure_backward() {
    std::vector<HookHandle> hooks;
    pass_ = Pass::first;
    for (const nn::Parameter& p : model_.parameters())
      hooks.push_back(p->register_post_accumulate_grad_hook([this](const Tensor& leaf) { arrived(leaf); }));
    step(false);
    pass_ = Pass::none;
    step(false);
    pass_ = Pass::accumulate;
    step(true);
    pass_ = Pass::by_block;
    model_.step_by_block(n_, *this);
    for (HookHandle& h : hooks) h.remove();
  }
  // The same with backward split in two.
  void measure_split_backward() {
    for (const Pass second : {Pass::weight_grad, Pass::weight_grad_accumulate}) {
      pass_ = Pass::input_grad;
      model_.forward(n_, *this, second == Pass::weight_grad_accumulate, true);
      model_.backward_in_two([&] { pass_ = second; });
    }
    for (std::size_t k = 0; k < bytes_.size(); ++k) bytes_[k].input_grad.growth = held_[k] - held_[k + 1];
  }

  void enter(Activity activity, std::size_t k) override {
    leave();
    if (activity == Activity::optimizer) return;
    at_ = k;
    forward_ = activity == Activity::forward;
    entered_ = allocated();
    if (forward_) {
      begin_[k] = entered_;
    } else if (k < model_.count()) {
      // The gradient of the block's output exists, and the later blocks have freed what they free.
      const double output = bytes_[k].output;
      if (pass_ == Pass::first)
        bytes_[k].unsaved_output = std::clamp(output - (entered_ - begin_[k + 1]), 0.0, output);
      if (pass_ == Pass::input_grad) held_[k + 1] -= output;
    }
    next_ = 0;
    reset_peak_memory(device_);
  }
  void computed() override { computed_ = allocated(); }
  void leave() override {
    if (!at_) return;
    BlockBytes& b = bytes_[*at_];
    if (!forward_ && pass_ >= Pass::first && pass_ <= Pass::by_block) {
      end_interval(-1);
    } else if (!forward_ && pass_ == Pass::input_grad) {
      b.input_grad.peak = peak() - begin_[*at_] - held_[*at_ + 1];
      held_[*at_] = allocated() - begin_[*at_];
    } else if (!forward_ && pass_ != Pass::none) {
      (pass_ == Pass::weight_grad ? b.weight_grad : b.weight_grad_accumulate) = {peak() - entered_,
                                                                                 allocated() - entered_};
    } else if (forward_ && pass_ == Pass::first) {
      b.saved = allocated() - begin_[*at_];
      b.freed_input = computed_ - allocated();
      b.forward_extra = peak() - computed_;
    }
    at_.reset();
  }

 private:
  enum class Pass { none, first, accumulate, by_block, input_grad, weight_grad, weight_grad_accumulate };

  void step(bool keep_gradients) {
    model_.forward(n_, *this, keep_gradients);
    model_.backward();
  }
  void arrived(const Tensor& leaf) {
    if (!at_ || *at_ >= model_.count() || pass_ == Pass::none) return;
    const std::vector<nn::Parameter> own = model_.block(*at_).module->parameters();
    const auto p =
        std::find_if(own.begin(), own.end(), [&](const nn::Parameter& q) { return q->is_same(leaf); });
    end_interval(p == own.end() ? -1 : static_cast<int>(p - own.begin()));
    if (pass_ != Pass::accumulate) leaf.set_grad({});
    reset_peak_memory(device_);
  }
  void end_interval(int parameter) {
    std::vector<IntervalBytes>& all = bytes_[*at_].backward;
    const double above = peak() - begin_[*at_];
    if (pass_ == Pass::first) all.push_back({parameter, above, above, allocated() - begin_[*at_]});
    else if (pass_ == Pass::accumulate && next_ < all.size()) all[next_++].accumulate = above;
    else if (pass_ == Pass::by_block && next_++ == 0 && !all.empty())
      bytes_[*at_].received_extra = above - all[0].peak - bytes_[*at_].freed_input;
  }
  double allocated() const { return static_cast<double>(memory_stats(device_).allocated); }
  double peak() const { return static_cast<double>(memory_stats(device_).peak_allocated); }

  ProfiledModel& model_;
  const std::int64_t n_;
  const Device device_;
  std::vector<BlockBytes> bytes_;  // per block, then of the loss
  std::vector<double> begin_;      // what is allocated before the forward of each block
  std::vector<double>
      held_;  // above that, by this and all later blocks when they wait for their weight gradients
  Pass pass_ = Pass::none;
  std::optional<std::size_t> at_;
  bool forward_ = false;
  double entered_ = 0, computed_ = 0;
  std::size_t next_ = 0;  // the next interval of an accumulating pass
};

std::vector<BlockBytes> measure_bytes(ProfiledModel& model, std::int64_t n, bool splits) {
  ByteObserver observer(model, n);
  observer.measure_backward();
  if (splits && model.count() > 1) observer.measure_split_backward();
  return observer.bytes();
}

// Returns the bytes of optimizer state per byte of parameters: what the first update allocates. No update may
// have run before.
double measure_optimizer_state(ProfiledModel& model, std::int64_t n) {
  StepObserver no_observer;
  model.forward(n, no_observer);
  model.backward();
  const std::int64_t before = memory_stats(model.device()).allocated;
  model.update(no_observer);
  const auto state = static_cast<double>(memory_stats(model.device()).allocated - before);
  return std::max(0.0, state / static_cast<double>(model.parameter_bytes()));
}

// A backward that is split in two as in Schedule::zero_bubble.
struct SplitBackward {
  double input_grad_s = 0, weight_grad_s = 0;
};

// Runs one step in which each block has a separate graph. The weight-gradient passes of all blocks run after
// the input-gradient passes of all blocks, as in a schedule that defers them.
std::vector<SplitBackward> run_split_backward(ProfiledModel& model, std::int64_t n, bool keep_gradients) {
  const std::size_t count = model.count();
  for (std::size_t k = 0; k < count && !keep_gradients; ++k)
    for (const nn::Parameter& p : model.block(k).module->parameters()) p->set_grad({});
  std::vector<Tensor> inputs, outputs;
  Tensor x = model.inputs(n);
  model.call([&] {
    for (std::size_t k = 0; k < count; ++k) {
      inputs.push_back(k > 0 ? x.detach().set_requires_grad() : x);
      x = (*model.block(k).module)(inputs[k]);
      outputs.push_back(x);
    }
  });
  x = x.detach().set_requires_grad();
  model.loss(x, model.targets(n)).backward();
  Tensor gradient = x.grad();
  x = {};

  std::vector<SplitBackward> times(count);
  std::vector<autograd::WeightGradients> weights(count);
  const auto timed = [&](const auto& task) {
    return seconds_of([&] {
      task();
      synchronize(model.device());
    });
  };
  for (std::size_t k = count; k-- > 1;) {
    times[k].input_grad_s = timed(
        [&] { gradient = autograd::backward_inputs({outputs[k]}, {inputs[k]}, {gradient}, weights[k])[0]; });
    outputs[k] = inputs[k] = {};
  }
  for (std::size_t k = count; k-- > 1;) times[k].weight_grad_s = timed([&] { weights[k].accumulate(); });
  return times;
}

// Fills in the zero-bubble times of the profiles.
void measure_split_backward(std::vector<BlockProfile>& blocks, ProfiledModel& model, std::int64_t n,
                            const MeasureOptions& options) {
  std::vector<std::vector<SplitBackward>> first, accumulated;
  for (int pass = 0; pass < options.warmup; ++pass) run_split_backward(model, n, false);
  for (int pass = 0; pass < options.passes; ++pass) {
    first.push_back(run_split_backward(model, n, false));
    accumulated.push_back(run_split_backward(model, n, true));
  }
  for (std::size_t k = 1; k < blocks.size(); ++k) {
    const auto median_of = [&](const std::vector<std::vector<SplitBackward>>& passes,
                               double SplitBackward::*what) {
      std::vector<double> times;
      for (const std::vector<SplitBackward>& pass : passes) times.push_back(pass[k].*what);
      return median(std::move(times));
    };
    BlockProfile& b = blocks[k];
    b.input_grad_s = median_of(first, &SplitBackward::input_grad_s);
    b.weight_grad_s = median_of(first, &SplitBackward::weight_grad_s);
    b.weight_grad_accumulate_s = median_of(accumulated, &SplitBackward::weight_grad_s);
  }
}

double measure_dispatch(const std::vector<Device>& devices) {
  std::vector<double> times;
  for (int i = 0; i < 101; ++i) times.push_back(seconds_of([&] { on_workers(devices, [](int) {}); }));
  return median(times);
}

std::int64_t micro_batch_of(const TrainingSetup& setup) {
  return std::max<std::int64_t>(1, setup.batch_size / setup.micro_batches);
}

// The costs of the blocks of a model and of its loss, but for what divided layers send.
struct MeasuredBlocks {
  std::vector<BlockProfile> blocks;
  BlockProfile loss;
  double optimizer_state = 0;
  std::vector<std::array<Curve, 2>> beside_s;  // attention beside messages, by block and pass; 0 of the loss
};

MeasuredBlocks measure_blocks(ProfiledModel& first, const std::vector<std::int64_t>& sizes,
                              const TrainingSetup& setup, const MeasureOptions& options) {
  const std::size_t count = first.count();
  double optimizer_state = 0;
  on_worker_of(first, [&] { optimizer_state = measure_optimizer_state(first, sizes[0]); });
  const std::vector<std::map<std::string, double>> times = measure_times(first, sizes, options);
  std::vector<std::vector<BlockBytes>> bytes(sizes.size());
  const std::int64_t micro_batch = micro_batch_of(setup);
  for (std::size_t i = 0; i < sizes.size(); ++i)
    on_worker_of(first, [&] { bytes[i] = measure_bytes(first, sizes[i], sizes[i] == micro_batch); });
  const MeasureOptions micro_batch_options{
      .warmup = options.warmup, .passes = options.passes * passes_of(micro_batch, setup.batch_size)};
  const std::vector<double> accumulation = measure_accumulation(first, micro_batch, micro_batch_options);
  std::vector<double> copies;
  on_worker_of(first, [&] { copies = measure_bucket_copies(first, options); });
  const double update_per_byte = times.back().at("update 0") / static_cast<double>(first.parameter_bytes());

  MeasuredBlocks measured;
  measured.optimizer_state = optimizer_state;
  for (std::size_t k = 0; k <= count; ++k) {
    const std::string number = " " + std::to_string(k);
    BlockProfile b;
    const auto timed = [&](const std::string& name) {
      std::vector<std::pair<double, double>> points;
      for (std::size_t i = 0; i < sizes.size(); ++i)
        points.emplace_back(static_cast<double>(sizes[i]), times[i].at(name + number));
      return Curve(std::move(points));
    };
    const auto beside = [&](const std::string& name) {
      std::vector<std::pair<double, double>> points;
      for (std::size_t i = 0; i < sizes.size(); ++i) {
        const auto found = times[i].find(kBeside + name + number);
        points.emplace_back(static_cast<double>(sizes[i]), found == times[i].end() ? 0 : found->second);
      }
      return Curve(std::move(points));
    };
    const auto curve_of = [&](const auto& value) {
      std::vector<std::pair<double, double>> points;
      for (std::size_t i = 0; i < sizes.size(); ++i)
        points.emplace_back(static_cast<double>(sizes[i]), value(bytes[i][k]));
      return Curve(std::move(points));
    };
    const auto counted = [&](double BlockBytes::*what) {
      return curve_of([&](const BlockBytes& of_size) { return of_size.*what; });
    };
    b.forward_s = timed("forward");
    b.backward_s = timed("backward");
    b.saved_bytes = counted(&BlockBytes::saved);
    b.output_bytes = counted(&BlockBytes::output);
    b.forward_extra_bytes = counted(&BlockBytes::forward_extra);
    b.freed_input_bytes = counted(&BlockBytes::freed_input);
    b.unsaved_output_bytes = counted(&BlockBytes::unsaved_output);
    b.received_extra_bytes = counted(&BlockBytes::received_extra);
    for (const std::vector<BlockBytes>& of_size : bytes)
      check(std::equal(of_size[k].backward.begin(), of_size[k].backward.end(), bytes[0][k].backward.begin(),
                       bytes[0][k].backward.end(),
                       [](const auto& x, const auto& y) { return x.parameter == y.parameter; }),
            "[planner] the gradients of block ", k,
            " arrive in an order that depends on the batch size, which no profile can describe");
    for (std::size_t j = 0; j < bytes[0][k].backward.size(); ++j) {
      const auto interval = [&](double IntervalBytes::*what) {
        return curve_of([&](const BlockBytes& of_size) { return of_size.backward.at(j).*what; });
      };
      b.backward.push_back({bytes[0][k].backward[j].parameter, interval(&IntervalBytes::peak),
                            interval(&IntervalBytes::accumulate), interval(&IntervalBytes::end)});
    }
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      if (sizes[i] != micro_batch) continue;
      b.input_grad = bytes[i][k].input_grad;
      b.weight_grad = bytes[i][k].weight_grad;
      b.weight_grad_accumulate = bytes[i][k].weight_grad_accumulate;
    }
    measured.beside_s.push_back({beside("forward"), beside("backward")});
    if (k == count) {
      b.name = "loss";
      measured.loss = std::move(b);
      break;
    }
    b.name = first.block(k).name;
    for (const nn::Parameter& p : first.block(k).module->parameters()) {
      for (const auto& axis : first.axes())
        if (axis->is_part(p)) b.parts.push_back(static_cast<int>(b.parameter_bytes.size()));
      b.parameter_bytes.push_back(static_cast<std::int64_t>(p->nbytes()));
    }
    b.update_s = update_per_byte * static_cast<double>(b.all_parameter_bytes());
    b.accumulate_s = accumulation[k];
    b.bucket_copy_s = copies[k];
    measured.blocks.push_back(std::move(b));
  }
  on_worker_of(first,
               [&] { measure_split_backward(measured.blocks, first, micro_batch, micro_batch_options); });
  return measured;
}

void measure_traffic(MeasuredBlocks& blocks, ProfiledModel& model, const std::vector<std::int64_t>& sizes) {
  std::vector<std::vector<std::array<std::vector<SentByLayers>, 2>>> of_size(sizes.size());
  for (std::size_t i = 0; i < sizes.size(); ++i)
    on_worker_of(model, [&] { of_size[i] = model.sent(sizes[i]); });
  for (std::size_t k = 0; k <= model.count(); ++k) {
    BlockProfile& b = k < model.count() ? blocks.blocks[k] : blocks.loss;
    for (std::size_t pass = 0; pass < 2; ++pass)
      for (std::size_t a = 0; a < model.axes().size(); ++a) {
        const DividedAxis& axis = *model.axes()[a];
        LayerCollectives own;
        own.axis = axis.name;
        own.what = axis.what();
        const auto set = [&](RingMessages& all, SentMessages SentByLayers::*kind) {
          std::vector<std::pair<double, double>> points;
          for (std::size_t i = 0; i < sizes.size(); ++i) {
            const SentMessages& sent = of_size[i][k][pass].at(a).*kind;
            all.count = std::max(all.count, sent.count);
            points.emplace_back(static_cast<double>(sizes[i]), sent.bytes);
          }
          if (all.count > 0) all.bytes = Curve(std::move(points));
        };
        set(own.all_reduce, &SentByLayers::all_reduce);
        set(own.all_gather, &SentByLayers::all_gather);
        set(own.reduce_scatter, &SentByLayers::reduce_scatter);
        set(own.beside, &SentByLayers::beside);
        // In a ring, messages travel during all steps but one.
        std::vector<std::pair<double, double>> beside = blocks.beside_s[k][pass].points();
        for (auto& [samples, seconds] : beside) seconds *= (axis.size - 1.0) / axis.size;
        if (own.beside.count > 0) own.beside_s = Curve(std::move(beside));
        (pass == 0 ? b.layers_forward : b.layers_backward).push_back(std::move(own));
      }
  }
}

}  // namespace

std::vector<Device> devices_of(const TrainingSetup& setup) {
  std::vector<Device> devices;
  for (int i = 0; i < setup.devices; ++i) devices.emplace_back(setup.device_type, i);
  return devices;
}

std::vector<std::int64_t> profile_sizes(const TrainingSetup& setup,
                                        const std::vector<int>& simulated_devices) {
  std::set<std::int64_t> sizes = {setup.batch_size,
                                  std::max<std::int64_t>(1, setup.batch_size / setup.micro_batches)};
  std::vector<int> devices = simulated_devices;
  devices.push_back(setup.devices);
  for (const int n : devices) sizes.insert(chunk_sizes(setup.batch_size, static_cast<std::size_t>(n))[0]);
  return {sizes.begin(), sizes.end()};
}

Profile measure_profile(const Model& model, const TrainingSetup& setup, const MeasureOptions& options) {
  check(setup.devices >= 1 && setup.micro_batches >= 1 && options.passes >= 1 && options.warmup >= 0,
        "[measure_profile] ", setup.devices, " devices, ", setup.micro_batches, " micro-batches, ",
        options.passes, " passes, ", options.warmup,
        " warm-up passes; pass 1 or more, and 0 or more warm-up passes");
  for (const int n : options.simulated_devices)
    check(n >= 1, "[measure_profile] ", n, " simulated devices; pass 1 or more");
  const std::vector<std::int64_t> sizes = profile_sizes(setup, options.simulated_devices);
  const std::vector<Device> devices = devices_of(setup);
  Models models;
  for (const Device d : devices) models.push_back(std::make_unique<ProfiledModel>(model, setup, d));
  ProfiledModel& first = *models[0];
  const std::size_t count = first.count();

  Profile profile;
  MeasuredBlocks whole = measure_blocks(first, sizes, setup, options);
  profile.blocks = std::move(whole.blocks);
  profile.loss = std::move(whole.loss);
  profile.optimizer_state = whole.optimizer_state;
  const auto per_sample = [&](const Tensor& t) {
    return static_cast<double>(t.nbytes()) / static_cast<double>(t.size(0));
  };
  profile.input_sample_bytes = per_sample(first.inputs(1));
  profile.target_sample_bytes = per_sample(first.targets(1));
  for (const std::string& layers : options.layers) {
    ProfiledModel divided(model, setup, devices[0], layers);
    MeasuredBlocks part = measure_blocks(divided, sizes, setup, options);
    measure_traffic(part, divided, sizes);
    // A rank's part of a batch is a copy, which the rank holds beside the whole batch.
    const auto with_part = [&](double all, const Tensor& own) {
      return all + (per_sample(own) < all ? per_sample(own) : 0);
    };
    profile.divided.push_back(
        {.axes = layers,
         .blocks = std::move(part.blocks),
         .loss = std::move(part.loss),
         .optimizer_state = part.optimizer_state,
         .input_sample_bytes = with_part(profile.input_sample_bytes, divided.inputs(1)),
         .target_sample_bytes = with_part(profile.target_sample_bytes, divided.targets(1))});
  }
  if (devices.size() == 1) return profile;

  const std::int64_t micro_batch = micro_batch_of(setup);
  const int stage_passes = options.passes * passes_of(micro_batch, setup.batch_size);
  const std::int64_t samples = chunk_sizes(setup.batch_size, devices.size())[0];
  profile.contention =
      measure_contention(models, samples, options.passes * passes_of(samples, setup.batch_size));
  std::vector<int> split = setup.split;
  if (split.empty() && count >= devices.size())
    split = balanced_split(profile.costs(static_cast<double>(micro_batch)), setup.devices);
  if (split.size() == devices.size() &&
      std::all_of(split.begin(), split.end(), [](int n) { return n >= 1; }) &&
      std::accumulate(split.begin(), split.end(), std::size_t{0}) == count) {
    profile.stages = measure_stage_contention(models, split, micro_batch, stage_passes);
    profile.zero_bubble_stages = measure_zero_bubble_stages(models, split, micro_batch, stage_passes);
  }
  profile.dispatch_s = measure_dispatch(devices);
  return profile;
}

}  // namespace tapestry::distributed::planner
