#include "tapestry/apps/compare/contention.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <functional>
#include <utility>

#include "tapestry/apps/compare/timing.h"
#include "tapestry/autograd/engine.h"
#include "tapestry/autograd/ops/creation.h"
#include "tapestry/core/context.h"
#include "tapestry/core/stream.h"
#include "tapestry/core/internal/worker.h"
#include "tapestry/nn/functional.h"

namespace apps::compare {

using namespace tapestry;

namespace {

using StepTimes = std::array<double, 3>;  // forward, backward, update
using PassTimes = std::array<double, 3>;  // forward, backward or its first half, its second half

// step(alone) in turn for both.
Contention contention_of(int passes, const std::function<StepTimes(bool)>& step) {
  step(false);  // all have their memory and their kernels
  std::array<std::vector<double>, 3> alone, together;
  // Twice each: what the first one finds in the caches was left by the other kind.
  for (int pass = 0; pass < passes; ++pass) {
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

// A part of a model, with what comes to it from its neighbours.
class PartOfModel {
 public:
  PartOfModel(WatchedModel& model, std::size_t begin, std::size_t end, std::int64_t n)
      : model_(model), begin_(begin), end_(end), labels_(model.labels(n)) {
    const NoGradGuard no_grad;
    input_ = through(model.images(n), 0, begin);
    if (!is_last()) gradient_ = zeros_like(through(input_, begin, end));
  }

  // Forward, and a backward pass that adds to gradients that are there, or finds none.
  PassTimes pass(bool in_halves, bool adds) {
    for (std::size_t k = begin_; k < end_ && !adds; ++k)
      for (const nn::Parameter& p : model_.block(k).module->parameters()) p->set_grad({});
    const Tensor input = begin_ > 0 ? input_.detach().set_requires_grad() : input_;
    Tensor x;
    const double forward_s = timed([&] {
      x = through(input, begin_, end_);
      if (is_last()) x = cross_entropy(x, labels_);
    });
    const auto backward = [&] { x.backward(gradient_); };
    if (!in_halves) return {forward_s, timed(backward), 0};
    if (begin_ == 0) return {forward_s, 0, timed(backward)};  // nobody waits for the gradients of images
    autograd::WeightGradients weights;
    const auto inputs = [&] {
      autograd::backward_inputs({x}, {input}, {is_last() ? ones_like(x) : gradient_}, weights);
    };
    const double inputs_s = timed(inputs);
    return {forward_s, inputs_s, timed([&] { weights.accumulate(); })};
  }

 private:
  bool is_last() const { return end_ == model_.count(); }
  Tensor through(Tensor x, std::size_t begin, std::size_t end) const {
    for (std::size_t k = begin; k < end; ++k) x = (*model_.block(k).module)(x);
    return x;
  }
  double timed(const std::function<void()>& task) const {
    return seconds_of([&] {
      task();
      synchronize(model_.device());
    });
  }

  WatchedModel& model_;
  std::size_t begin_, end_;
  Tensor labels_, input_, gradient_;
};

// Counts down when it goes, whether its work came to an end or threw.
class AtWork {
 public:
  explicit AtWork(std::atomic<int>& count) : count_(&count) {}
  ~AtWork() { end(); }
  AtWork(const AtWork&) = delete;
  AtWork& operator=(const AtWork&) = delete;
  void end() {
    if (std::atomic<int>* const count = std::exchange(count_, nullptr)) --*count;
  }

 private:
  std::atomic<int>* count_;
};

using AllTimes = std::array<std::vector<double>, 3>;  // of passes

// Of a part: passes alone, without gradients to add to and with them; and with, while all are at work.
struct PartTimes {
  AllTimes first, alone, together;
};

std::vector<PartTimes> times_of_parts(const Models& models, const std::vector<int>& split, std::int64_t n,
                                      int passes, bool in_halves) {
  std::vector<Device> devices;
  for (const auto& model : models) devices.push_back(model->device());
  std::vector<std::unique_ptr<PartOfModel>> parts(models.size());
  on_workers(devices, [&](int i) {
    const auto at = static_cast<std::size_t>(i);
    const DeviceGuard guard(devices[at]);
    std::size_t begin = 0;
    for (std::size_t s = 0; s < at; ++s) begin += static_cast<std::size_t>(split[s]);
    parts[at] =
        std::make_unique<PartOfModel>(*models[at], begin, begin + static_cast<std::size_t>(split[at]), n);
    parts[at]->pass(in_halves, false);
  });
  std::vector<PartTimes> times(parts.size());
  const auto add = [](AllTimes& all, const PassTimes& pass) {
    for (std::size_t i = 0; i < pass.size(); ++i) all[i].push_back(pass[i]);
  };
  for (int pass = 0; pass < passes; ++pass) {  // twice each, as above
    for (std::size_t s = 0; s < parts.size(); ++s)
      on_workers(std::span(devices).subspan(s, 1), [&](int) {
        const DeviceGuard guard(devices[s]);
        add(times[s].first, parts[s]->pass(in_halves, false));
        add(times[s].alone, parts[s]->pass(in_halves, true));
      });
    std::atomic<int> at_work = static_cast<int>(parts.size());
    on_workers(devices, [&](int i) {
      const auto s = static_cast<std::size_t>(i);
      const DeviceGuard guard(devices[s]);
      AtWork work(at_work);
      parts[s]->pass(in_halves, false);
      add(times[s].together, parts[s]->pass(in_halves, true));
      work.end();
      while (at_work > 0) parts[s]->pass(in_halves, true);  // so that the others are not alone meanwhile
    });
  }
  return times;
}

PartContention contention_of(const PartTimes& times) {
  const auto factor = [&](std::size_t i) {
    const double alone = median(times.alone[i]);
    return alone > 0 ? std::max(1.0, median(times.together[i]) / alone) : 1;
  };
  return {factor(0), factor(1), factor(2)};
}

// On the workers of the first `count` models; the slowest is waited for.
double seconds_on(const Models& models, std::size_t count, const std::function<void(WatchedModel&)>& task) {
  std::vector<Device> devices;
  for (std::size_t i = 0; i < count; ++i) devices.push_back(models[i]->device());
  return seconds_of([&] {
    on_workers(devices, [&](int i) {
      WatchedModel& model = *models[static_cast<std::size_t>(i)];
      const DeviceGuard guard(model.device());
      task(model);
    });
  });
}

}  // namespace

Contention measure_contention(const Models& models, std::int64_t n, int passes) {
  Watcher nobody;
  return contention_of(passes, [&](bool alone) {
    const std::size_t count = alone ? 1 : models.size();
    StepTimes times{};
    times[0] = seconds_on(models, count, [&](WatchedModel& m) { m.forward(n, nobody); });
    times[1] = seconds_on(models, count, [](WatchedModel& m) { m.backward(); });
    times[2] = seconds_on(models, count, [&](WatchedModel& m) { m.update(nobody); });
    return times;
  });
}

Contention measure_contention(const Models& models, std::int64_t n, int passes,
                              const std::function<void()>& send, const std::function<void()>& add) {
  Watcher nobody;
  return contention_of(passes, [&](bool alone) {
    const std::size_t count = alone ? 1 : models.size();
    StepTimes times{};
    if (!alone) send();
    times[0] = seconds_on(models, count, [&](WatchedModel& m) { m.forward(n, nobody); });
    times[1] = seconds_on(models, count, [](WatchedModel& m) { m.backward(); });
    if (!alone) add();
    times[2] = seconds_on(models, 1, [&](WatchedModel& m) { m.update(nobody); });
    return times;
  });
}

Contention measure_contention(distributed::ProcessGroup& group, WatchedModel& model, Buckets& buckets,
                              std::int64_t n, int passes) {
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

std::vector<PartContention> measure_part_contention(const Models& models, const std::vector<int>& split,
                                                    std::int64_t n, int passes) {
  std::vector<PartContention> contention;
  for (const PartTimes& times : times_of_parts(models, split, n, passes, false))
    contention.push_back(contention_of(times));
  return contention;
}

std::vector<PartInHalves> measure_parts_in_halves(const Models& models, const std::vector<int>& split,
                                                  std::int64_t n, int passes) {
  std::vector<PartInHalves> parts;
  for (const PartTimes& times : times_of_parts(models, split, n, passes, true))
    parts.push_back({.contention = contention_of(times),
                     .inputs_s = median(times.alone[1]),
                     .weights_s = median(times.first[2]),
                     .weights_added_s = median(times.alone[2])});
  return parts;
}

}  // namespace apps::compare
