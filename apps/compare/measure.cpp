#include "tapestry/apps/compare/measure.h"

#include <algorithm>
#include <chrono>

#include "tapestry/apps/compare/training.h"
#include "tapestry/autograd/ops/creation.h"
#include "tapestry/core/allocator.h"
#include "tapestry/core/error.h"
#include "tapestry/core/memory_record.h"
#include "tapestry/core/stream.h"
#include "tapestry/core/threads.h"
#include "tapestry/distributed/comm/text.h"

namespace apps::compare {

using namespace tapestry;

namespace {

using Clock = std::chrono::steady_clock;

double seconds(Clock::duration d) { return std::chrono::duration<double>(d).count(); }

struct Step {
  double began = 0;  // in seconds of the steady clock, which is common to all processes on the host
  double step_s = 0;
  std::vector<Span> spans;
  std::vector<Traffic> traffic;
  std::vector<std::pair<std::string, double>> exposed_s;
};

// The measurements of one process.
struct Record {
  std::vector<std::string> rows;  // the devices
  std::vector<std::int64_t> peak_bytes;
  std::vector<MemoryHistory> memory;
  std::vector<Step> steps;
  std::vector<double> losses;
};

// `stage_axis` has stages, whose waits for messages are not measured.
Record train(Training& training, const Workload& w, const std::string& stage_axis) {
  Record record;
  const std::vector<Device> devices = training.devices();
  const auto finish = [&] {
    for (const Device d : devices) synchronize(d);
  };
  for (const Device d : devices) record.rows.push_back(d.str());
  for (int i = 0; i < w.warmup; ++i) record.losses.push_back(training.step().item());
  finish();
  for (const Device d : devices) reset_peak_memory(d);
  for (int i = 0; i < w.steps; ++i) {
    const Clock::time_point began = Clock::now();
    const Timeline timeline;
    const Tensor loss = training.step();
    finish();
    Step step;
    step.step_s = seconds(Clock::now() - began);
    step.began = seconds(began.time_since_epoch());
    step.spans = timeline.spans();
    training.name_subjects(step.spans);
    step.traffic = training.traffic();
    // Rows of one axis, such as DDP and ZeRO, add up.
    for (const distributed::AxisReport& r : training.strategy().report()) {
      if (r.axis == stage_axis) continue;
      if (step.exposed_s.empty() || step.exposed_s.back().first != r.axis)
        step.exposed_s.emplace_back(r.axis, 0);
      step.exposed_s.back().second += r.exposed_s;
    }
    record.steps.push_back(std::move(step));
    record.losses.push_back(loss.item());
  }
  for (const MemorySample& most : training.strategy().memory()) record.peak_bytes.push_back(most.total());
  return record;
}

void shift(std::vector<Span>& spans, double seconds) {
  for (Span& s : spans) s.begin += seconds, s.end += seconds;
}

// Trains a new model, since the kind of a block is known only if the block was allocated while the record
// existed. The record takes a lock for every allocation, so the step is not one of the timed ones.
std::vector<MemoryHistory> memory_of_a_step(const Mode& mode, const Workload& w,
                                            std::unique_ptr<Training>& training) {
  constexpr std::size_t kSamples = 400;
  MemoryRecord record;
  training = std::make_unique<Training>(mode, w);
  const std::vector<Device> devices = training->devices();
  const auto finish = [&] {
    for (const Device d : devices) synchronize(d);
  };
  for (int i = 0; i < w.warmup; ++i) training->step().item();
  finish();
  record.restart();
  const Timeline timeline;
  training->step();
  finish();
  std::vector<Span> spans = timeline.spans();
  shift(spans, seconds(timeline.began() - record.began()));
  std::vector<MemoryHistory> memory;
  for (const Device d : devices)
    memory.push_back({d.str(), thinned(record.samples(d), kSamples), phases_of(spans, d.str())});
  return memory;
}

std::size_t median_step(const std::vector<Step>& steps) {
  std::vector<std::size_t> order(steps.size());
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::sort(order.begin(), order.end(),
            [&](std::size_t a, std::size_t b) { return steps[a].step_s < steps[b].step_s; });
  return order[(order.size() - 1) / 2];
}

Result result_of_step(const Record& record, std::size_t chosen) {
  const Step& step = record.steps[chosen];
  Result r;
  r.rows = record.rows;
  r.step_s = step.step_s;
  for (const Step& one : record.steps) r.steps_s.push_back(one.step_s);
  r.spans = step.spans;
  r.traffic = step.traffic;
  r.exposed_s = step.exposed_s;
  r.peak_bytes = record.peak_bytes;
  r.memory = record.memory;
  r.losses = record.losses;
  return r;
}

// Merges the results of all processes into one result with one row per process, because each process has one
// device. All processes report the same step: the one that has the median duration on rank 0. Times count
// from the beginning of that step on rank 0.
Result joined(const Record& own, distributed::ProcessGroup& group) {
  const std::string median =
      distributed::broadcast_text(group, std::to_string(median_step(own.steps)), 0, "median step");
  const std::size_t chosen = std::stoul(median);
  Result mine = result_of_step(own, chosen);
  shift(mine.spans, own.steps[chosen].began);

  Result all = mine;
  all.rows.clear(), all.peak_bytes.clear(), all.memory.clear(), all.spans.clear();
  all.traffic.clear();
  for (auto& [axis, seconds] : all.exposed_s) seconds = 0;
  all.losses.assign(own.losses.size(), 0);
  for (const std::string& text : distributed::all_gather_text(group, to_text(mine), "measurements")) {
    Result one = result_from_text(text);
    const std::string device = one.rows.at(0), row = "rank " + std::to_string(all.rows.size());
    all.rows.push_back(row);
    all.peak_bytes.push_back(one.peak_bytes.at(0));
    if (!one.memory.empty())
      all.memory.push_back({row, std::move(one.memory[0].samples), one.memory[0].phases_s});
    all.traffic.insert(all.traffic.end(), one.traffic.begin(), one.traffic.end());
    for (std::size_t i = 0; i < all.losses.size(); ++i) all.losses[i] += one.losses.at(i);
    for (std::size_t i = 0; i < all.exposed_s.size(); ++i)
      all.exposed_s[i].second += one.exposed_s.at(i).second / group.size();
    shift(one.spans, -own.steps[chosen].began);
    for (Span& s : one.spans) {  // "cpu:0 communication" becomes "rank 1 communication"
      if (s.row.starts_with(device)) s.row.replace(0, device.size(), row);
      all.spans.push_back(std::move(s));
    }
  }
  return all;
}

}  // namespace

std::optional<Result> measure(const Mode& mode, const Workload& workload, bool record_memory) {
  const ThreadShare share(workload.threads_per_device());
  auto training = std::make_unique<Training>(mode, workload);
  Record record = train(*training, workload, mode.stage_axis());
  if (record_memory) {
    training.reset();
    record.memory = memory_of_a_step(mode, workload, training);
  }
  Result result;
  if (distributed::ProcessGroup* const group = training->group()) {
    result = joined(record, *group);
    if (group->rank() != 0) return std::nullopt;
  } else {
    result = result_of_step(record, median_step(record.steps));
  }
  result.name = mode.name;
  result.breakdown = breakdown_of(result.spans, result.rows, result.step_s);
  return result;
}

}  // namespace apps::compare
