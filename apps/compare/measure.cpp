#include "tapestry/apps/compare/measure.h"

#include <algorithm>
#include <chrono>
#include <limits>
#include <nlohmann/json.hpp>

#include "tapestry/apps/compare/models.h"
#include "tapestry/autograd/ops/creation.h"
#include "tapestry/core/allocator.h"
#include "tapestry/core/error.h"
#include "tapestry/core/stream.h"
#include "tapestry/core/threads.h"
#include "tapestry/distributed/comm/text.h"

namespace apps::compare {

using namespace tapestry;
using nlohmann::json;

namespace {

using Clock = std::chrono::steady_clock;

double seconds(Clock::duration d) { return std::chrono::duration<double>(d).count(); }

struct Step {
  double began = 0;  // on the clock that all processes of the host share
  double step_s = 0;
  std::vector<Span> spans;
  std::int64_t bytes_sent = 0;
};

// Of one process.
struct Record {
  std::vector<std::string> rows;
  std::vector<std::int64_t> peak_bytes;
  std::vector<Step> steps;
  std::vector<double> losses;
};

std::string text_of(const Record& r) {
  json steps = json::array();
  for (const Step& s : r.steps) {
    json spans = json::array();
    for (const Span& x : s.spans)
      spans.push_back({x.row, static_cast<int>(x.activity), x.name, x.begin, x.end});
    steps.push_back(
        {{"began", s.began}, {"step_s", s.step_s}, {"spans", spans}, {"bytes_sent", s.bytes_sent}});
  }
  return json{{"rows", r.rows}, {"peak_bytes", r.peak_bytes}, {"steps", steps}, {"losses", r.losses}}.dump();
}

Record train(Training& training, const Workload& w) {
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
    step.bytes_sent = training.bytes_sent();
    record.steps.push_back(std::move(step));
    record.losses.push_back(loss.item());
  }
  for (const Device d : devices) record.peak_bytes.push_back(memory_stats(d).peak_allocated);
  return record;
}

std::size_t median_step(const std::vector<Step>& steps) {
  std::vector<std::size_t> order(steps.size());
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::sort(order.begin(), order.end(),
            [&](std::size_t a, std::size_t b) { return steps[a].step_s < steps[b].step_s; });
  return order[(order.size() - 1) / 2];
}

// "cpu:0 communication" -> "rank 1 communication"
std::string renamed(const std::string& row, const std::string& from, const std::string& to) {
  return row.starts_with(from) ? to + row.substr(from.size()) : row;
}

Result result_of_one(const Record& record) {
  const Step& step = record.steps[median_step(record.steps)];
  Result r;
  r.rows = record.rows;
  r.step_s = step.step_s;
  r.spans = step.spans;
  r.bytes_sent = step.bytes_sent;
  r.peak_bytes = record.peak_bytes;
  r.losses = record.losses;
  return r;
}

// A row a process: each has one device. The first one's clock and median step are everybody's.
Result joined(const Record& own, const std::vector<std::string>& texts) {
  const std::size_t chosen = median_step(own.steps);
  Result all;
  all.step_s = own.steps[chosen].step_s;
  all.losses.resize(own.losses.size());
  for (std::size_t rank = 0; rank < texts.size(); ++rank) {
    const json record = json::parse(texts[rank]);
    const json& step = record.at("steps").at(chosen);
    const std::string device = record.at("rows").at(0), row = "rank " + std::to_string(rank);
    const double later = step.at("began").get<double>() - own.steps[chosen].began;
    all.rows.push_back(row);
    all.peak_bytes.push_back(record.at("peak_bytes").at(0));
    all.bytes_sent += step.at("bytes_sent").get<std::int64_t>();
    for (std::size_t i = 0; i < all.losses.size(); ++i)
      all.losses[i] += record.at("losses").at(i).is_null() ? std::numeric_limits<double>::quiet_NaN()
                                                           : record.at("losses").at(i).get<double>();
    for (const json& s : step.at("spans"))
      all.spans.push_back({renamed(s.at(0), device, row), static_cast<Activity>(s.at(1).get<int>()), s.at(2),
                           s.at(3).get<double>() + later, s.at(4).get<double>() + later});
  }
  return all;
}

}  // namespace

std::optional<Result> measure(const Mode& mode, const Workload& workload) {
  const ThreadShare share(workload.threads_per_device());
  const std::unique_ptr<Training> training = mode.make(workload);
  const Record record = train(*training, workload);
  Result result;
  if (distributed::ProcessGroup* const group = training->group()) {
    const auto texts = distributed::all_gather_text(*group, text_of(record), "measurements");
    if (group->rank() != 0) return std::nullopt;
    result = joined(record, texts);
  } else {
    result = result_of_one(record);
  }
  result.name = mode.name;
  result.split = split_of(result.spans, result.rows, result.step_s);
  return result;
}

std::vector<double> block_costs(const Workload& w) {
  constexpr int kTimes = 3;
  const ThreadShare share(w.threads_per_device());
  const Device device(w.device_type, 0);
  std::vector<double> costs;
  const std::int64_t samples = std::max<std::int64_t>(1, w.batch_size / w.micro_batches);
  Tensor x = make_batch(w).images.narrow(0, 0, samples).to(device);
  for (const Block& block : make_blocks(w)) {
    block.module->to(device);
    std::vector<double> times;
    Tensor y;
    for (int i = 0; i <= kTimes; ++i) {  // once more than is counted: the first one warms up
      Tensor input = x.detach();
      if (!costs.empty()) input.set_requires_grad();  // nobody asks for the images' gradient
      synchronize(device);
      const Clock::time_point began = Clock::now();
      y = (*block.module)(input);
      y.backward(ones_like(y));
      synchronize(device);
      if (i > 0) times.push_back(seconds(Clock::now() - began));
    }
    costs.push_back(*std::min_element(times.begin(), times.end()));
    x = y.detach();
  }
  return costs;
}

}  // namespace apps::compare
