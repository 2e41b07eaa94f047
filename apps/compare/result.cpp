#include "tapestry/apps/compare/result.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>
#include <nlohmann/json.hpp>

#include "tapestry/core/error.h"

namespace apps::compare {

using nlohmann::json;
using tapestry::Activity;
using tapestry::Span;

namespace {

double& part_of(StepBreakdown& breakdown, Activity activity) {
  switch (activity) {
    case Activity::forward:
      return breakdown.forward_s;
    case Activity::backward:
      return breakdown.backward_s;
    case Activity::communication:
      return breakdown.exposed_comm_s;
    default:
      return breakdown.update_s;
  }
}

// Adds the spans of one device to `breakdown`. The begins and ends of spans divide the step into intervals.
// Each interval counts for the innermost span around it, which is the one that began last.
void add_row(StepBreakdown& breakdown, const std::vector<Span>& spans, double step_s) {
  std::vector<double> times;
  for (const Span& s : spans)
    for (const double t : {s.begin, s.end}) times.push_back(std::clamp(t, 0.0, step_s));
  std::sort(times.begin(), times.end());
  double busy = 0;
  for (std::size_t i = 1; i < times.size(); ++i) {
    const double middle = (times[i - 1] + times[i]) / 2, length = times[i] - times[i - 1];
    const Span* inner = nullptr;
    for (const Span& s : spans)
      if (s.begin <= middle && middle < s.end && (!inner || s.begin >= inner->begin)) inner = &s;
    if (!inner || length <= 0) continue;
    part_of(breakdown, inner->activity) += length;
    busy += length;
  }
  breakdown.idle_s += step_s - busy;
}

}  // namespace

std::vector<double> phases_of(const std::vector<Span>& spans, const std::string& row) {
  std::vector<double> phases;
  double end = 0;
  for (const Activity activity : {Activity::forward, Activity::backward, Activity::optimizer}) {
    double began = std::numeric_limits<double>::infinity();
    for (const Span& s : spans) {
      if (s.row != row) continue;
      end = std::max(end, s.end);
      if (s.activity == activity) began = std::min(began, s.begin);
    }
    if (!std::isfinite(began) || (!phases.empty() && began < phases.back())) return {};
    phases.push_back(began);
  }
  phases.push_back(end);
  return phases;
}

StepBreakdown breakdown_of(const std::vector<Span>& spans, const std::vector<std::string>& rows,
                           double step_s) {
  StepBreakdown breakdown;
  for (const std::string& row : rows) {
    std::vector<Span> own;
    std::copy_if(spans.begin(), spans.end(), std::back_inserter(own),
                 [&](const Span& s) { return s.row == row; });
    add_row(breakdown, own, step_s);
  }
  const double n = static_cast<double>(std::max<std::size_t>(rows.size(), 1));
  for (double StepBreakdown::*part :
       {&StepBreakdown::forward_s, &StepBreakdown::backward_s, &StepBreakdown::exposed_comm_s,
        &StepBreakdown::update_s, &StepBreakdown::idle_s})
    breakdown.*part /= n;
  return breakdown;
}

std::string to_text(const Result& r) {
  json spans = json::array();
  for (const Span& s : r.spans)
    spans.push_back({s.row, static_cast<int>(s.activity), s.name, s.begin, s.end, s.subject.module,
                     s.subject.bucket, s.subject.bytes, s.subject.axis});
  json memory = json::array();
  for (const MemoryHistory& h : r.memory) {
    json samples = json::array();
    for (const tapestry::MemorySample& s : h.samples) samples.push_back({s.seconds, s.bytes});
    memory.push_back({h.row, samples, h.phases_s});
  }
  json traffic = json::array();
  for (const Traffic& t : r.traffic) traffic.push_back({t.from, t.to, t.bytes, t.axis, t.what, t.phase});
  return json{{"name", r.name},          {"rows", r.rows},     {"step_s", r.step_s},
              {"steps_s", r.steps_s},    {"spans", spans},     {"peak_bytes", r.peak_bytes},
              {"memory", memory},        {"traffic", traffic}, {"losses", r.losses},
              {"exposed_s", r.exposed_s}}
      .dump();
}

Result result_from_text(const std::string& text) try {
  const json j = json::parse(text);
  Result r;
  r.name = j.at("name");
  r.rows = j.at("rows").get<std::vector<std::string>>();
  r.step_s = j.at("step_s");
  r.steps_s = j.at("steps_s").get<std::vector<double>>();
  for (const json& s : j.at("spans")) {
    const int activity = s.at(1);
    tapestry::check(activity >= 0 && activity <= static_cast<int>(Activity::other), "unknown activity ",
                    activity);
    r.spans.push_back({s.at(0), static_cast<Activity>(activity), s.at(2), s.at(3), s.at(4)});
    r.spans.back().subject = {s.at(5), s.at(6), s.at(7), s.at(8)};
  }
  r.peak_bytes = j.at("peak_bytes").get<std::vector<std::int64_t>>();
  for (const json& h : j.at("memory")) {
    r.memory.push_back({h.at(0), {}, h.at(2).get<std::vector<double>>()});
    for (const json& s : h.at(1))
      r.memory.back().samples.push_back(
          {s.at(0), s.at(1).get<std::array<std::int64_t, tapestry::kNumMemoryKinds>>()});
  }
  for (const json& t : j.at("traffic"))
    r.traffic.push_back({t.at(0), t.at(1), t.at(2), t.at(3), t.at(4), t.at(5)});
  r.exposed_s = j.at("exposed_s").get<std::vector<std::pair<std::string, double>>>();
  for (const json& loss : j.at("losses"))  // JSON has no NaN
    r.losses.push_back(loss.is_null() ? std::numeric_limits<double>::quiet_NaN() : loss.get<double>());
  r.breakdown = breakdown_of(r.spans, r.rows, r.step_s);
  return r;
} catch (const std::exception& e) {
  tapestry::fail("[compare] the text is not a result of a mode: ", e.what());
}

std::vector<std::pair<std::string, int>> Result::sending_axes() const {
  auto all = axes;
  const auto add = [&](const std::string& name) {
    int size = 1;
    for (const auto& [axis, own] : axes)
      if (('_' + name + '_').find('_' + axis + '_') != std::string::npos) size *= own;
    const auto is_same = [&](const auto& axis) { return axis.first == name; };
    if (std::none_of(all.begin(), all.end(), is_same)) all.emplace_back(name, size);
  };
  for (const Traffic& t : traffic) add(t.axis);
  for (const planner::AxisCost& p : predicted_axes) add(p.axis);
  return all;
}

std::int64_t Result::bytes_sent(const std::string& axis) const {
  std::int64_t bytes = 0;
  for (const Traffic& t : traffic)
    if (axis.empty() || t.axis == axis) bytes += t.bytes;
  return bytes;
}

const tapestry::MemorySample& MemoryHistory::peak() const {
  return *std::max_element(samples.begin(), samples.end(),
                           [](const auto& a, const auto& b) { return a.total() < b.total(); });
}

std::vector<tapestry::MemorySample> thinned(const std::vector<tapestry::MemorySample>& samples,
                                            std::size_t count) {
  if (samples.size() <= count) return samples;
  const double first = samples.front().seconds, length = samples.back().seconds - first;
  std::vector<tapestry::MemorySample> kept = {samples.front()};
  double interval = -1;
  for (std::size_t i = 1; i + 1 < samples.size(); ++i) {
    const tapestry::MemorySample& s = samples[i];
    const double own = std::floor((s.seconds - first) / length * static_cast<double>(count));
    if (own != interval) kept.push_back(s);
    else if (s.total() > kept.back().total()) kept.back() = s;
    interval = own;
  }
  kept.push_back(samples.back());
  return kept;
}

Result median_of(std::vector<Result> rounds) {
  tapestry::check(!rounds.empty(), "[median_of] the list of results is empty; pass one or more");
  std::sort(rounds.begin(), rounds.end(),
            [](const Result& a, const Result& b) { return a.step_s < b.step_s; });
  return rounds[(rounds.size() - 1) / 2];
}

double loss_difference(const std::vector<double>& losses, const std::vector<double>& reference) {
  double distance = 0, norm = 0;
  if (losses.size() != reference.size()) return std::numeric_limits<double>::infinity();
  for (std::size_t i = 0; i < losses.size(); ++i) {
    distance = std::hypot(distance, losses[i] - reference[i]);
    norm = std::hypot(norm, reference[i]);
  }
  const double difference = distance == 0 ? 0 : distance / norm;
  return std::isfinite(difference) ? difference : std::numeric_limits<double>::infinity();
}

double tolerance(const Workload& w) {
  if (w.dtype == tapestry::DType::f64) return 1e-10;
  return w.optimizer == "adamw" ? 1e-2 : 1e-4;
}

void compare_losses(std::vector<Result>& results, double tolerance) {
  for (Result& r : results) {
    if (!r.error.empty() || !results[0].error.empty()) continue;
    r.difference = loss_difference(r.losses, results[0].losses);
    if (r.difference <= tolerance) continue;
    char numbers[64];
    std::snprintf(numbers, sizeof numbers, "%.2g, norm-wise; the tolerance is %.2g", r.difference, tolerance);
    r.error = std::string("the losses differ from those of single by ") + numbers;
  }
}

}  // namespace apps::compare
