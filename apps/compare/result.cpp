#include "tapestry/apps/compare/result.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "tapestry/core/error.h"

namespace apps::compare {

using nlohmann::json;
using tapestry::Activity;
using tapestry::Span;

namespace {

double& part_of(StepSplit& split, Activity activity) {
  switch (activity) {
    case Activity::forward:
      return split.forward_s;
    case Activity::backward:
      return split.backward_s;
    case Activity::communication:
      return split.exposed_comm_s;
    default:
      return split.update_s;
  }
}

// Adds up one row: between two neighbouring ends of spans the one counts that began last.
void add_row(StepSplit& split, const std::vector<Span>& spans, double step_s) {
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
    part_of(split, inner->activity) += length;
    busy += length;
  }
  split.idle_s += step_s - busy;
}

}  // namespace

StepSplit split_of(const std::vector<Span>& spans, const std::vector<std::string>& rows, double step_s) {
  StepSplit split;
  for (const std::string& row : rows) {
    std::vector<Span> own;
    std::copy_if(spans.begin(), spans.end(), std::back_inserter(own),
                 [&](const Span& s) { return s.row == row; });
    add_row(split, own, step_s);
  }
  const double n = static_cast<double>(std::max<std::size_t>(rows.size(), 1));
  for (double StepSplit::*part : {&StepSplit::forward_s, &StepSplit::backward_s, &StepSplit::exposed_comm_s,
                                  &StepSplit::update_s, &StepSplit::idle_s})
    split.*part /= n;
  return split;
}

std::string to_text(const Result& r) {
  json spans = json::array();
  for (const Span& s : r.spans)
    spans.push_back({s.row, static_cast<int>(s.activity), s.name, s.begin, s.end});
  return json{{"name", r.name},
              {"rows", r.rows},
              {"step_s", r.step_s},
              {"spans", spans},
              {"peak_bytes", r.peak_bytes},
              {"bytes_sent", r.bytes_sent},
              {"losses", r.losses}}
      .dump();
}

Result result_of(const std::string& text) try {
  const json j = json::parse(text);
  Result r;
  r.name = j.at("name");
  r.rows = j.at("rows").get<std::vector<std::string>>();
  r.step_s = j.at("step_s");
  for (const json& s : j.at("spans")) {
    const int activity = s.at(1);
    tapestry::check(activity >= 0 && activity <= static_cast<int>(Activity::other), "activity ", activity);
    r.spans.push_back({s.at(0), static_cast<Activity>(activity), s.at(2), s.at(3), s.at(4)});
  }
  r.peak_bytes = j.at("peak_bytes").get<std::vector<std::int64_t>>();
  r.bytes_sent = j.at("bytes_sent");
  for (const json& loss : j.at("losses"))  // JSON has no NaN
    r.losses.push_back(loss.is_null() ? std::numeric_limits<double>::quiet_NaN() : loss.get<double>());
  r.split = split_of(r.spans, r.rows, r.step_s);
  return r;
} catch (const std::exception& e) {
  tapestry::fail("[compare] this is no result of a mode: ", e.what());
}

Result median_of(std::vector<Result> rounds) {
  tapestry::check(!rounds.empty(), "[median_of] there are no results");
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

double tolerance(tapestry::DType dtype) { return dtype == tapestry::DType::f64 ? 1e-10 : 1e-4; }

void compare_losses(std::vector<Result>& results, double tolerance) {
  for (Result& r : results) {
    if (!r.error.empty() || !results[0].error.empty()) continue;
    r.difference = loss_difference(r.losses, results[0].losses);
    if (r.difference <= tolerance) continue;
    r.error = tapestry::concat(
        {"its losses differ from single's by ", r.difference, ", norm-wise, which is more than ", tolerance});
  }
}

}  // namespace apps::compare
