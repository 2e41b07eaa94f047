#include "tapestry/distributed/planner/internal/contention.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <functional>
#include <utility>

#include "tapestry/autograd/engine.h"
#include "tapestry/autograd/ops/creation.h"
#include "tapestry/core/context.h"
#include "tapestry/core/stream.h"
#include "tapestry/core/internal/worker.h"
#include "tapestry/distributed/planner/internal/timing.h"

namespace tapestry::distributed::planner {

namespace {

using StepTimes = std::array<double, 3>;  // forward, backward, update
using PassTimes = std::array<double, 3>;  // forward, backward or input gradients, weight gradients

// Compares step(true), which runs on one device alone, with step(false), which runs on all devices at once.
// Returns how many times longer each phase of a step takes on all devices.
Contention contention_of(int passes, const std::function<StepTimes(bool)>& step) {
  step(false);  // warms up the allocators and kernels of all devices
  std::array<std::vector<double>, 3> alone, together;
  for (int pass = 0; pass < passes; ++pass) {
    // Steps on one device and on all devices leave the caches in different states. So the first step of each
    // kind only warms the caches and is not measured.
    step(true);
    const StepTimes one = step(true);
    step(false);
    const StepTimes all = step(false);
    for (std::size_t i = 0; i < 3; ++i) {
      alone[i].push_back(one[i]);
      together[i].push_back(all[i]);
    }
  }
  const auto factor = [&](std::size_t i) { return std::max(1.0, median(together[i]) / median(alone[i])); };
  return {factor(0), factor(1), factor(2)};
}

// A stage of a model with the input and the output gradient that its neighbours would send.
class StageRunner {
 public:
  StageRunner(ProfiledModel& model, std::size_t begin, std::size_t end, std::int64_t n)
      : model_(model), begin_(begin), end_(end), targets_(model.targets(n)) {
    const NoGradGuard no_grad;
    input_ = run_blocks(model.inputs(n), 0, begin);
    if (!is_last()) gradient_ = zeros_like(run_blocks(input_, begin, end));
  }

  // Runs forward and backward. Backward adds to existing gradients if `accumulates` is true.
  PassTimes pass(bool zero_bubble, bool accumulates) {
    for (std::size_t k = begin_; k < end_ && !accumulates; ++k)
      for (const nn::Parameter& p : model_.block(k).module->parameters()) p->set_grad({});
    const Tensor input = begin_ > 0 ? input_.detach().set_requires_grad() : input_;
    Tensor x;
    const double forward_s = timed([&] {
      x = run_blocks(input, begin_, end_);
      if (is_last()) x = model_.loss(x, targets_);
    });
    const auto backward = [&] { x.backward(gradient_); };
    if (!zero_bubble) return {forward_s, timed(backward), 0};
    if (begin_ == 0) return {forward_s, 0, timed(backward)};  // no stage needs its input gradients
    autograd::WeightGradients weights;
    const auto inputs = [&] {
      autograd::backward_inputs({x}, {input}, {is_last() ? ones_like(x) : gradient_}, weights);
    };
    const double input_grad_s = timed(inputs);
    return {forward_s, input_grad_s, timed([&] { weights.accumulate(); })};
  }

 private:
  bool is_last() const { return end_ == model_.count(); }
  Tensor run_blocks(Tensor x, std::size_t begin, std::size_t end) const {
    for (std::size_t k = begin; k < end; ++k) x = (*model_.block(k).module)(x);
    return x;
  }
  double timed(const std::function<void()>& task) const {
    return seconds_of([&] {
      task();
      synchronize(model_.device());
    });
  }

  ProfiledModel& model_;
  std::size_t begin_, end_;
  Tensor targets_, input_, gradient_;
};

// Decrements the number of measuring devices on end() or destruction, so that an exception on one device does
// not leave the others waiting.
class MeasuringScope {
 public:
  explicit MeasuringScope(std::atomic<int>& count) : count_(&count) {}
  ~MeasuringScope() { end(); }
  MeasuringScope(const MeasuringScope&) = delete;
  MeasuringScope& operator=(const MeasuringScope&) = delete;
  void end() {
    if (std::atomic<int>* const count = std::exchange(count_, nullptr)) --*count;
  }

 private:
  std::atomic<int>* count_;
};

using TimesOfPasses = std::array<std::vector<double>, 3>;  // as PassTimes, with one value per pass

struct StageTimes {
  TimesOfPasses first;     // alone, without existing gradients
  TimesOfPasses alone;     // alone, with existing gradients
  TimesOfPasses together;  // all stages at once, with existing gradients
};

std::vector<StageTimes> measure_stages(const Models& models, const std::vector<int>& split, std::int64_t n,
                                       int passes, bool zero_bubble) {
  std::vector<Device> devices;
  for (const auto& model : models) devices.push_back(model->device());
  std::vector<std::unique_ptr<StageRunner>> stages(models.size());
  on_workers(devices, [&](int i) {
    const auto at = static_cast<std::size_t>(i);
    const DeviceGuard guard(devices[at]);
    std::size_t begin = 0;
    for (std::size_t s = 0; s < at; ++s) begin += static_cast<std::size_t>(split[s]);
    stages[at] =
        std::make_unique<StageRunner>(*models[at], begin, begin + static_cast<std::size_t>(split[at]), n);
    stages[at]->pass(zero_bubble, false);
  });
  std::vector<StageTimes> times(stages.size());
  const auto add = [](TimesOfPasses& all, const PassTimes& pass) {
    for (std::size_t i = 0; i < pass.size(); ++i) all[i].push_back(pass[i]);
  };
  for (int pass = 0; pass < passes; ++pass) {
    for (std::size_t s = 0; s < stages.size(); ++s)
      on_workers(std::span(devices).subspan(s, 1), [&](int) {
        const DeviceGuard guard(devices[s]);
        add(times[s].first, stages[s]->pass(zero_bubble, false));
        add(times[s].alone, stages[s]->pass(zero_bubble, true));
      });
    std::atomic<int> measuring = static_cast<int>(stages.size());
    on_workers(devices, [&](int i) {
      const auto s = static_cast<std::size_t>(i);
      const DeviceGuard guard(devices[s]);
      MeasuringScope scope(measuring);
      stages[s]->pass(zero_bubble, false);
      add(times[s].together, stages[s]->pass(zero_bubble, true));
      scope.end();
      while (measuring > 0) stages[s]->pass(zero_bubble, true);  // keeps contending until all have measured
    });
  }
  return times;
}

StageContention contention_of(const StageTimes& times) {
  const auto factor = [&](std::size_t i) {
    const double alone = median(times.alone[i]);
    return alone > 0 ? std::max(1.0, median(times.together[i]) / alone) : 1;
  };
  return {factor(0), factor(1), factor(2)};
}

// Runs `task` on the workers of the first `count` models at once. Returns the time of the slowest.
double seconds_on(const Models& models, std::size_t count, const std::function<void(ProfiledModel&)>& task) {
  std::vector<Device> devices;
  for (std::size_t i = 0; i < count; ++i) devices.push_back(models[i]->device());
  return seconds_of([&] {
    on_workers(devices, [&](int i) {
      ProfiledModel& model = *models[static_cast<std::size_t>(i)];
      const DeviceGuard guard(model.device());
      task(model);
    });
  });
}

}  // namespace

Contention measure_contention(const Models& models, std::int64_t n, int passes) {
  StepObserver no_observer;
  return contention_of(passes, [&](bool alone) {
    const std::size_t count = alone ? 1 : models.size();
    StepTimes times{};
    times[0] = seconds_on(models, count, [&](ProfiledModel& m) { m.forward(n, no_observer); });
    times[1] = seconds_on(models, count, [](ProfiledModel& m) { m.backward(); });
    times[2] = seconds_on(models, count, [&](ProfiledModel& m) { m.update(no_observer); });
    return times;
  });
}

Contention measure_contention(const Models& models, std::int64_t n, int passes,
                              const std::function<void()>& send, const std::function<void()>& add) {
  StepObserver no_observer;
  return contention_of(passes, [&](bool alone) {
    const std::size_t count = alone ? 1 : models.size();
    StepTimes times{};
    if (!alone) send();
    times[0] = seconds_on(models, count, [&](ProfiledModel& m) { m.forward(n, no_observer); });
    times[1] = seconds_on(models, count, [](ProfiledModel& m) { m.backward(); });
    if (!alone) add();
    times[2] = seconds_on(models, 1, [&](ProfiledModel& m) { m.update(no_observer); });
    return times;
  });
}

Contention measure_contention(ProcessGroup& group, ProfiledModel& model, Buckets& buckets, std::int64_t n,
                              int passes) {
  if (group.size() == 1) return {};
  const DeviceGuard guard(model.device());
  return contention_of(passes, [&](bool alone) {
    const bool works = !alone || group.rank() == 0;
    const auto timed = [&](const std::function<void()>& task) {
      group.barrier().wait();
      return seconds_of([&] {
        if (works) task();
        group.barrier().wait();
      });
    };
    StepTimes times{};
    times[0] = timed([&] { model.forward(n, buckets); });
    times[1] = timed([&] { buckets.backward(); });
    times[2] = timed([&] { model.update(buckets); });
    return times;
  });
}

std::vector<StageContention> measure_stage_contention(const Models& models, const std::vector<int>& split,
                                                      std::int64_t n, int passes) {
  std::vector<StageContention> contention;
  for (const StageTimes& times : measure_stages(models, split, n, passes, false))
    contention.push_back(contention_of(times));
  return contention;
}

std::vector<ZeroBubbleStage> measure_zero_bubble_stages(const Models& models, const std::vector<int>& split,
                                                        std::int64_t n, int passes) {
  std::vector<ZeroBubbleStage> stages;
  for (const StageTimes& times : measure_stages(models, split, n, passes, true))
    stages.push_back({.contention = contention_of(times),
                      .input_grad_s = median(times.alone[1]),
                      .weight_grad_s = median(times.first[2]),
                      .weight_grad_accumulate_s = median(times.alone[2])});
  return stages;
}

}  // namespace tapestry::distributed::planner
