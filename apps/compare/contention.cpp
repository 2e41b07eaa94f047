#include "tapestry/apps/compare/contention.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <functional>
#include <utility>

#include "tapestry/apps/compare/timing.h"
#include "tapestry/autograd/ops/creation.h"
#include "tapestry/core/context.h"
#include "tapestry/core/stream.h"
#include "tapestry/core/worker.h"
#include "tapestry/nn/functional.h"

namespace apps::compare {

using namespace tapestry;

namespace {

using StepTimes = std::array<double, 3>;  // forward, backward, update

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

  // Forward, and a backward pass that adds to gradients that are there after the first.
  std::array<double, 2> pass() {
    Tensor x = begin_ > 0 ? input_.detach().set_requires_grad() : input_;
    const double forward_s = timed([&] {
      x = through(x, begin_, end_);
      if (is_last()) x = cross_entropy(x, labels_);
    });
    return {forward_s, timed([&] { x.backward(gradient_); })};
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

}  // namespace

Contention measure_contention(const Models& models, std::int64_t n, int passes) {
  Watcher nobody;
  return contention_of(passes, [&](bool alone) {
    std::vector<Device> devices;
    for (std::size_t i = 0; i < (alone ? 1 : models.size()); ++i) devices.push_back(models[i]->device());
    const auto timed = [&](const std::function<void(WatchedModel&)>& task) {
      return seconds_of([&] {
        on_workers(devices, [&](int i) {
          WatchedModel& model = *models[static_cast<std::size_t>(i)];
          const DeviceGuard guard(model.device());
          task(model);
        });
      });
    };
    StepTimes times{};
    times[0] = timed([&](WatchedModel& m) { m.forward(n, nobody); });
    times[1] = timed([](WatchedModel& m) { m.backward(); });
    times[2] = timed([&](WatchedModel& m) { m.update(nobody); });
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

std::vector<Contention> measure_part_contention(const Models& models, const std::vector<int>& split,
                                                std::int64_t n, int passes) {
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
    parts[at]->pass();
  });
  using PassTimes = std::array<std::vector<double>, 2>;
  std::vector<PassTimes> alone(parts.size()), together(parts.size());
  const auto add = [](PassTimes& all, const std::array<double, 2>& pass) {
    for (std::size_t i = 0; i < 2; ++i) all[i].push_back(pass[i]);
  };
  for (int pass = 0; pass < passes; ++pass) {  // twice each, as above
    for (std::size_t s = 0; s < parts.size(); ++s)
      on_workers(std::span(devices).subspan(s, 1), [&](int) {
        const DeviceGuard guard(devices[s]);
        parts[s]->pass();
        add(alone[s], parts[s]->pass());
      });
    std::atomic<int> at_work = static_cast<int>(parts.size());
    on_workers(devices, [&](int i) {
      const auto s = static_cast<std::size_t>(i);
      const DeviceGuard guard(devices[s]);
      AtWork work(at_work);
      parts[s]->pass();
      add(together[s], parts[s]->pass());
      work.end();
      while (at_work > 0) parts[s]->pass();  // so that the others are not alone meanwhile
    });
  }
  std::vector<Contention> contention;
  for (std::size_t s = 0; s < parts.size(); ++s) {
    const auto factor = [&](std::size_t i) {
      return std::max(1.0, median(together[s][i]) / median(alone[s][i]));
    };
    contention.push_back({factor(0), factor(1), 1});
  }
  return contention;
}

}  // namespace apps::compare
