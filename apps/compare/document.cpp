#include "tapestry/apps/compare/document.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>

#include "tapestry/apps/common/page_files.h"
#include "tapestry/apps/compare/changes.h"
#include "tapestry/apps/compare/critical_path.h"
#include "tapestry/apps/compare/holdings.h"
#include "tapestry/core/error.h"
#include "tapestry/core/version.h"

namespace apps::compare {
namespace {

using nlohmann::ordered_json;
using tapestry::concat;
using tapestry::Span;
using tapestry::SpanSubject;
using tapestry::distributed::StrategyPlan;

constexpr std::size_t kSpansPerRow = 400, kSamples = 240;
constexpr int kDevicesOfPage = 16;     // whose parts and messages are on the page
constexpr double kPixel = 1 / 2400.0;  // half a pixel at 1200 px, as a part of the step

double ms(double seconds) { return seconds * 1000; }
// In ms, with 0.1 us of precision, which makes a page smaller.
double rounded(double seconds) { return std::round(seconds * 1e7) / 1e4; }

ordered_json in_ms(const std::vector<double>& seconds) {
  ordered_json all = ordered_json::array();
  for (const double s : seconds) all.push_back(ms(s));
  return all;
}

ordered_json json_of(const planner::StepBreakdown& b) {
  return {{"forward_ms", ms(b.forward_s)},
          {"backward_ms", ms(b.backward_s)},
          {"exposed_comm_ms", ms(b.exposed_comm_s)},
          {"update_ms", ms(b.update_s)},
          {"idle_ms", ms(b.idle_s)}};
}

ordered_json json_of(const StrategyPlan& plan) {
  constexpr const char* kSums[] = {"none", "buckets", "units", "master"};
  const std::vector<tapestry::distributed::StepDivision> divisions = divisions_of(plan);
  if (divisions.size() < plan.axes.size()) return nullptr;
  ordered_json axes = ordered_json::array();
  for (std::size_t i = 0; i < plan.axes.size(); ++i) {
    const tapestry::distributed::StepDivision& d = divisions[i];
    axes.push_back({{"name", plan.axes[i].name},
                    {"size", plan.axes[i].size},
                    {"sum", kSums[static_cast<std::size_t>(d.sum)]},
                    {"zero", d.zero},
                    {"schedule", d.schedule},
                    {"keeps_whole", d.keeps_whole},
                    {"layers", d.layers},
                    {"options", d.options},
                    {"samples", d.samples},
                    {"copies", d.copies},
                    {"parts", d.parts}});
  }
  return {{"one_process", plan.over_devices}, {"splits_model", plan.splits_model}, {"axes", std::move(axes)}};
}

ordered_json json_of(const Sentence& sentence) {
  ordered_json all = ordered_json::array();
  for (const Phrase& p : sentence) {
    const char* const style = p.style == Phrase::Style::mode ? "mode" : "strong";
    if (p.style == Phrase::Style::plain) all.push_back(p.text);
    else all.push_back({{style, p.text}});
  }
  return all;
}

ordered_json json_of(const Verdict& v, const std::string& against) {
  return {{"against", against}, {"low", v.low}, {"median", v.median}, {"high", v.high}, {"word", v.word}};
}

std::string status_of(const Result& r) {
  if (r.error.empty()) return "ok";
  if (r.measured()) return "losses";
  return r.error.starts_with("the process did not end within") ? "timeout" : "failed";
}

// The number of the device in whose row, or beside whose row, the span is; -1 if there is none.
int device_of(const Span& s, const Result& r) {
  int device = -1;
  for (std::size_t i = 0; i < r.rows.size(); ++i)
    if (s.row == r.rows[i] || s.row.starts_with(r.rows[i] + " ")) device = static_cast<int>(i);
  return device;
}

// Null where nothing is known.
ordered_json known(const std::string& text) { return text.empty() ? ordered_json() : ordered_json(text); }
ordered_json json_of(const SpanSubject& s) {
  return {{"block", known(s.module)},
          {"bucket", s.bucket < 0 ? ordered_json() : ordered_json(s.bucket)},
          {"bytes", s.bytes == 0 ? ordered_json() : ordered_json(s.bytes)},
          {"axis", known(s.axis)}};
}

// What a span of several neighbours is about.
SpanSubject joined(SpanSubject a, const SpanSubject& b) {
  if (a.module != b.module) a.module.clear();
  if (a.bucket != b.bucket) a.bucket = -1;
  if (a.axis != b.axis) a.axis.clear();
  a.bytes += b.bytes;
  return a;
}

struct PageSpan : Span {
  bool is_critical = false;
};

// Merges neighbours of the same row and activity that are too short to be seen.
std::vector<PageSpan> without_short_spans(const Result& r, const std::vector<std::size_t>& critical_path) {
  std::map<std::string, std::size_t> counts;
  for (const Span& s : r.spans) ++counts[s.row];
  std::vector<PageSpan> kept;
  for (std::size_t i = 0; i < r.spans.size(); ++i) {
    PageSpan s{r.spans[i]};
    s.is_critical = std::find(critical_path.begin(), critical_path.end(), i) != critical_path.end();
    PageSpan* const last = kept.empty() ? nullptr : &kept.back();
    const double shortest = r.step_s * kPixel;
    const bool merges = counts[s.row] > kSpansPerRow && last && last->row == s.row &&
                        last->activity == s.activity && s.end - last->begin < 2 * shortest &&
                        s.begin - last->end < shortest;
    if (!merges) {
      kept.push_back(std::move(s));
      continue;
    }
    last->end = std::max(last->end, s.end), last->name = "several";
    last->subject = joined(last->subject, s.subject);
    last->is_critical = last->is_critical || s.is_critical;
  }
  return kept;
}

ordered_json timeline_of(const Result& r, const Dependencies& dependencies) {
  ordered_json all = ordered_json::array();
  for (std::size_t i = 0; i < r.spans.size(); ++i) {
    const Span& s = r.spans[i];
    const int device = device_of(s, r);
    const bool own = device >= 0 && s.row == r.rows[static_cast<std::size_t>(device)];
    ordered_json j = {{"id", i},
                      {"row", s.row},
                      {"device", device < 0 ? ordered_json() : ordered_json(device)},
                      {"lane", own ? "compute" : "communication"},
                      {"activity", tapestry::activity_name(s.activity)},
                      {"name", s.name},
                      {"begin_ms", ms(s.begin)},
                      {"end_ms", ms(s.end)}};
    j.update(json_of(s.subject));
    j["needs"] = dependencies.needs[i];
    all.push_back(std::move(j));
  }
  return all;
}

// [device, 1 if beside the device's row, Activity, index into span_names, begin, end, 1 if on the critical
// path, index into span_subjects]
void add_page_spans(ordered_json& j, const Result& r, const std::vector<std::size_t>& critical_path) {
  std::map<std::string, std::size_t> index, subjects;
  j["span_names"] = j["span_subjects"] = ordered_json::array();
  j["spans"] = ordered_json::array();
  const std::vector<PageSpan> spans = without_short_spans(r, critical_path);
  for (const PageSpan& s : spans) {
    const int device = device_of(s, r);
    if (device < 0) continue;
    const auto [at, is_new] = index.emplace(s.name, index.size());
    if (is_new) j["span_names"].push_back(s.name);
    const SpanSubject& about = s.subject;
    const auto [subject, is_new_subject] = subjects.emplace(
        concat({about.module, "\n", about.bucket, "\n", about.bytes, "\n", about.axis}), subjects.size());
    if (is_new_subject) j["span_subjects"].push_back(json_of(about));
    const bool own = s.row == r.rows[static_cast<std::size_t>(device)];
    j["spans"].push_back({device, own ? 0 : 1, static_cast<int>(s.activity), at->second, rounded(s.begin),
                          rounded(s.end), s.is_critical ? 1 : 0, subject->second});
  }
  j["spans_merged"] = r.spans.size() - spans.size();
}

// The moment of the timed step that corresponds to `seconds` of the recorded one.
double on_clock(double seconds, const std::vector<double>& recorded, const std::vector<double>& timed) {
  for (std::size_t i = 0; i < recorded.size(); ++i) {
    const double r0 = i == 0 ? 0 : recorded[i - 1], t0 = i == 0 ? 0 : timed[i - 1];
    if (seconds > recorded[i] && i + 1 < recorded.size()) continue;
    if (recorded[i] <= r0) return timed[i];
    return std::min(timed.back(), t0 + (seconds - r0) / (recorded[i] - r0) * (timed[i] - t0));
  }
  return seconds;
}

void add_page_memory(ordered_json& j, const Result& r) {
  if (r.memory.empty()) return;
  const MemoryHistory& h = fullest(r);
  std::vector<double> recorded = h.phases_s, timed = phases_of(r.spans, h.row);
  if (recorded.empty() || timed.empty()) recorded = {h.samples.back().seconds}, timed = {r.step_s};
  // The update ends before the step does; what happens after it is stretched to the end.
  recorded.back() = std::max(recorded.back(), h.samples.back().seconds), timed.back() = r.step_s;
  ordered_json samples = ordered_json::array();
  for (const tapestry::MemorySample& s : thinned(h.samples, kSamples)) {
    ordered_json one = {rounded(std::clamp(on_clock(s.seconds, recorded, timed), 0.0, r.step_s))};
    for (const std::int64_t bytes : s.bytes) one.push_back(bytes);
    samples.push_back(std::move(one));
  }
  j["memory_over_time"] = {{"device", &h - r.memory.data()}, {"samples", std::move(samples)}};
}

ordered_json memory_of(const MemoryHistory& h, bool for_page) {
  ordered_json peak, samples = ordered_json::array();
  for (std::size_t k = 0; k < memory_kinds().size(); ++k) peak[memory_kinds()[k]] = h.peak().bytes[k];
  peak["total"] = h.peak().total();
  ordered_json most;
  for (std::size_t k = 0; k < memory_kinds().size(); ++k) {
    std::int64_t bytes = 0;
    for (const tapestry::MemorySample& s : h.samples) bytes = std::max(bytes, s.bytes[k]);
    most[memory_kinds()[k]] = bytes;
  }
  ordered_json j = {{"device", h.row}, {"peak", std::move(peak)}, {"most", std::move(most)}};
  if (for_page) return j;
  for (const tapestry::MemorySample& s : h.samples) samples.push_back({ms(s.seconds), s.bytes});
  j["phases_ms"] = in_ms(h.phases_s);
  j["samples"] = std::move(samples);
  return j;
}

void add_places(ordered_json& j, const Report& report, const Result& r, bool for_page) {
  j["traffic"] = j["holdings"] = ordered_json::array();
  for (const Traffic& t : r.traffic)
    if (!for_page)
      j["traffic"].push_back({{"from", t.from},
                              {"to", t.to},
                              {"bytes", t.bytes},
                              {"axis", t.axis},
                              {"kind", t.what},
                              {"phase", known(t.phase)}});
    else if (t.from < kDevicesOfPage && t.to < kDevicesOfPage)
      j["traffic"].push_back({t.from, t.to, t.bytes, t.axis, t.what, t.phase});
  for (const Holding& h : holdings_of(report, r))
    if (!for_page)
      j["holdings"].push_back({{"device", h.device},
                               {"kind", tapestry::memory_kind_name(h.kind)},
                               {"layers", {h.first_block, h.last_block}},
                               {"part", {h.first, h.last}},
                               {"resident_bytes", h.resident_bytes},
                               {"borrowed_bytes", h.borrowed_bytes}});
    else if (h.device < kDevicesOfPage)
      j["holdings"].push_back({h.device, static_cast<int>(h.kind), h.first_block, h.last_block, h.first,
                               h.last, h.resident_bytes, h.borrowed_bytes});
}

// What the axes of a mode send and wait for, measured and predicted.
ordered_json axis_costs_of(const Result& r) {
  ordered_json all = ordered_json::array();
  for (const auto& [axis, size] : r.sending_axes()) {
    ordered_json j = {{"axis", axis}, {"size", size}, {"bytes_sent", r.bytes_sent(axis)}};
    for (const auto& [name, seconds] : r.exposed_s)
      if (name == axis) j["exposed_ms"] = ms(seconds);
    for (const planner::AxisCost& p : r.predicted_axes)
      if (p.axis == axis)
        j["predicted_bytes_sent"] = p.bytes_sent, j["predicted_exposed_ms"] = ms(p.exposed_s);
    all.push_back(std::move(j));
  }
  return all;
}

ordered_json rounds_of(const Result& r, std::size_t order) {
  ordered_json all = ordered_json::array();
  for (std::size_t i = 0; i < r.rounds_s.size(); ++i)
    all.push_back({{"round", i + 1},
                   {"order", order + 1},
                   {"step_ms", ms(r.rounds_s[i])},
                   {"steps_ms", i < r.rounds_steps_s.size() ? in_ms(r.rounds_steps_s[i]) : ordered_json()}});
  return all;
}

ordered_json json_of(const Report& report, const Judgement& judgement, std::size_t i, bool for_page) {
  const Result& r = report.results[i];
  const Remark& remark = judgement.remarks.at(i);
  ordered_json j = {{"name", r.name}, {"description", r.description}, {"title", r.title},
                    {"axes", r.axes}, {"family", r.family},           {"predicted_as", json_of(r.plan)}};
  const Changes changes = changes_of(r.plan, r.title);
  j["changed_lines"] = changes.changed_lines;
  j["changes"] = changes.lines;
  j["status"] = status_of(r);
  if (!r.error.empty()) {
    j["error"] = r.error;
    const std::size_t line = r.error.find('\n');
    j["log"] = line == std::string::npos ? "" : r.error.substr(line + 1);
  }
  j["rounds"] = rounds_of(r, i);
  j["predicted_step_ms"] = r.predicted_step_s ? ordered_json(ms(*r.predicted_step_s)) : ordered_json();
  j["predicted_low_ms"] = r.predicted_step_s ? ordered_json(ms(r.predicted_low_s)) : ordered_json();
  j["predicted_high_ms"] = r.predicted_step_s ? ordered_json(ms(r.predicted_high_s)) : ordered_json();
  j["predicted_peak_bytes"] =
      r.predicted_peak_bytes.empty() ? ordered_json() : ordered_json(r.predicted_peak_bytes);
  if (!r.measured()) return j;
  j["samples_per_s"] = samples_per_s(report, r);
  j["step_ms"] = ms(r.step_s);
  j["rounds_ms"] = in_ms(r.rounds_s);
  j.update(json_of(r.breakdown));
  j["devices"] = r.rows;
  j["peak_bytes"] = r.peak_bytes;
  j["memory"] = ordered_json::array();
  for (const MemoryHistory& h : r.memory) j["memory"].push_back(memory_of(h, for_page));
  j["bytes_sent"] = r.bytes_sent();
  j["split"] = r.split;
  j["axis_costs"] = axis_costs_of(r);
  add_places(j, report, r, for_page);
  j["final_loss"] = r.losses.back();
  j["difference_from_single"] = r.difference;
  j["prediction_error"] = r.predicted_step_s ? ordered_json(r.prediction_error()) : ordered_json();
  j["spread"] = remark.spread;
  j["noisy"] = remark.noisy;
  if (remark.losses)
    j["losses_ms"] = {{"communication", ms(remark.losses->communication_s)},
                      {"idle", ms(remark.losses->idle_s)},
                      {"update", ms(remark.losses->update_s)},
                      {"compute", ms(remark.losses->compute_s)}};
  j["why"] = remark.why;
  j["long_why"] = remark.long_why;
  for (const Place& p : judgement.main().places)
    if (p.name == r.name) {
      j["place"] = p.place;
      j["verdict"] = json_of(p.against_fastest, judgement.main().places[0].name);
    }
  const Dependencies dependencies = dependencies_of(r);
  if (for_page) {
    add_page_spans(j, r, dependencies.critical_path), add_page_memory(j, r);
    return j;
  }
  j["timeline"] = timeline_of(r, dependencies);
  j["critical_path"] = dependencies.critical_path;
  return j;
}

ordered_json json_of(const std::vector<planner::AxisCost>& axes) {
  ordered_json all = ordered_json::array();
  for (const planner::AxisCost& a : axes)
    all.push_back(
        {{"axis", a.axis}, {"size", a.size}, {"bytes_sent", a.bytes_sent}, {"exposed_ms", ms(a.exposed_s)}});
  return all;
}

ordered_json timeline_of(const planner::Prediction& p, const Dependencies& dependencies) {
  ordered_json all = ordered_json::array();
  const int each = p.devices / p.rows;
  for (std::size_t i = 0; i < p.timeline.size(); ++i) {
    const planner::PredictedSpan& s = p.timeline[i];
    all.push_back({{"id", i},
                   {"devices", {s.row * each, (s.row + 1) * each - 1}},
                   {"lane", s.beside ? "communication" : "compute"},
                   {"activity", tapestry::activity_name(s.activity)},
                   {"name", s.name},
                   {"begin_ms", ms(s.begin_s)},
                   {"end_ms", ms(s.end_s)}});
    all.back().update(json_of(s.subject));
    all.back()["needs"] = dependencies.needs[i];
  }
  return all;
}

ordered_json memory_over_time_of(const planner::Prediction& p) {
  ordered_json samples = ordered_json::array();
  for (const planner::PredictedMemory& m : p.memory_over_time) {
    samples.push_back({{"begin_ms", ms(m.begin_s)}});
    for (const auto& [name, bytes] : m.items.items()) samples.back()[name] = bytes;
  }
  return {{"device", p.memory_device}, {"samples", std::move(samples)}};
}

// What only predictions of the measured devices have.
void add_prediction_of(ordered_json& j, const Result& r) {
  j["low_ms"] = ms(r.predicted_low_s), j["high_ms"] = ms(r.predicted_high_s);
  j["traffic"] = ordered_json::array();
  for (const planner::PredictedTraffic& t : r.predicted_traffic)
    j["traffic"].push_back({{"from", t.from},
                            {"to", t.to},
                            {"bytes", t.bytes},
                            {"axis", t.axis},
                            {"kind", t.kind},
                            {"phase", known(t.phase)}});
}

// The page's own planner makes the timelines.
ordered_json json_of(const Report& report, const std::vector<planner::Prediction>& predictions,
                     bool for_page) {
  ordered_json all = ordered_json::array();
  for (const planner::Prediction& p : predictions) {
    ordered_json j = {
        {"name", p.mode}, {"simulated", p.simulated}, {"devices", p.devices}, {"step_ms", ms(p.step_s)}};
    j.update(json_of(p.breakdown));
    j["bubble_ms"] = ms(p.bubble_s);
    j["axes"] = json_of(p.axes);
    j["why"] = planner::why(p);
    j["memory"] = ordered_json::array();
    for (const planner::MemoryItems& m : p.memory) {
      ordered_json bytes;
      for (const auto& [name, value] : m.items()) bytes[name] = value;
      bytes["total"] = m.total();
      j["memory"].push_back(std::move(bytes));
    }
    if (!for_page) {
      for (const Result& r : report.results)
        if (r.name == p.mode && !p.simulated) add_prediction_of(j, r);
      const Dependencies dependencies = dependencies_of(p);
      j["memory_over_time"] = memory_over_time_of(p);
      j["timeline"] = timeline_of(p, dependencies);
      j["critical_path"] = dependencies.critical_path;
    }
    all.push_back(std::move(j));
  }
  return all;
}

ordered_json scaling_of(const Report& report) {
  ordered_json all = ordered_json::array();
  for (const planner::Prediction& p : report.scaling) {
    ordered_json j = {{"name", p.mode}, {"devices", p.devices}, {"step_ms", ms(p.step_s)}};
    j.update(json_of(p.breakdown));
    j["peak_bytes"] = p.largest().total();
    all.push_back(std::move(j));
  }
  for (const Limit& l : report.limits)
    all.push_back({{"name", l.mode}, {"devices", l.devices}, {"limit", l.reason}});
  return all;
}

ordered_json json_of(const GivenLink& link) {
  if (!link.latency_us && !link.bandwidth_gbs) return nullptr;
  const auto given = [](const auto& value) { return value ? ordered_json(*value) : ordered_json(); };
  return {{"latency_us", given(link.latency_us)}, {"bandwidth_gbs", given(link.bandwidth_gbs)}};
}

// The predictions of all meshes, the fastest first. Null if there are none.
ordered_json sweep_of(const Report& report) {
  if (report.sweep.empty()) return nullptr;
  const Workload& w = report.workload;
  ordered_json rows = ordered_json::array();
  for (const planner::Prediction& p : report.sweep) {
    const auto peak = static_cast<std::int64_t>(p.largest().total());
    ordered_json j = {{"mesh", p.mode}, {"step_ms", ms(p.step_s)}};
    j.update(json_of(p.breakdown));
    j["bubble_ms"] = ms(p.bubble_s);
    j["axes"] = json_of(p.axes);
    j["why"] = planner::why(p);
    j["peak_bytes"] = peak;
    ordered_json memory;
    for (const auto& [name, value] : p.largest().items()) memory[name] = value;
    j["memory"] = std::move(memory);
    j["fits"] = report.memory_limit_bytes ? ordered_json(peak <= *report.memory_limit_bytes) : ordered_json();
    rows.push_back(std::move(j));
  }
  return {{"devices", report.sweep.front().devices}, {"devices_per_host", w.devices_per_host},
          {"links_per_host", w.links_per_host},      {"link", json_of(report.given_link)},
          {"cross", json_of(report.given_cross)},    {"rows", std::move(rows)}};
}

ordered_json json_of(const Answer& a, bool is_last) {
  ordered_json j = {{"limit_bytes", is_last ? ordered_json() : ordered_json(a.limit_bytes)},
                    {"headline", json_of(a.headline)},
                    {"lead", json_of(a.lead)},
                    {"shared", json_of(a.shared)},
                    {"first", a.first},
                    {"places", ordered_json::array()}};
  for (const Place& p : a.places)
    j["places"].push_back(
        {{"name", p.name}, {"place", p.place}, {"verdict", json_of(p.against_fastest, a.places[0].name)}});
  return j;
}

ordered_json document(const Report& report, const Judgement& judgement, bool for_page) {
  const Workload& w = report.workload;
  const Host& h = report.host;
  const auto load = [](double value) { return value < 0 ? ordered_json() : ordered_json(value); };
  ordered_json j = {{"schema", 2},
                    {"version", tapestry::version()},
                    {"run",
                     {{"command", report.command},
                      {"began", report.began},
                      {"seconds", report.seconds},
                      {"host",
                       {{"cpu", h.cpu},
                        {"cores", h.cores},
                        {"memory_bytes", h.memory_bytes},
                        {"os", h.os},
                        {"compiler", h.compiler},
                        {"gpus", h.gpus}}},
                      {"load_begin", load(report.load_begin)},
                      {"load_end", load(report.load_end)}}},
                    {"setup", setup_line(report)},
                    {"options",
                     {{"model", w.model},
                      {"batch_size", w.batch_size},
                      {"image_size", w.image_size},
                      {"length", w.length},
                      {"width", w.width},
                      {"heads", w.heads},
                      {"experts", w.experts},
                      {"dtype", concat({w.dtype})},
                      {"devices", w.devices},
                      {"device_type", tapestry::device_type_name(w.device_type)},
                      {"threads", w.threads},
                      {"micro_batches", w.micro_batches},
                      {"warmup", w.warmup},
                      {"steps", w.steps},
                      {"rounds", report.rounds},
                      {"optimizer", w.optimizer},
                      {"momentum", w.momentum},
                      {"lr", w.learning_rate()},
                      {"seed", w.seed},
                      {"first_bucket_bytes", w.first_bucket_bytes},
                      {"bucket_cap_bytes", w.bucket_cap_bytes},
                      {"split", w.split}}},
                    {"devices", report.device_names},
                    {"threads_per_device", w.threads_per_device()},
                    {"tolerance", tolerance(w)},
                    {"memory_limit_bytes",
                     report.memory_limit_bytes ? ordered_json(*report.memory_limit_bytes) : ordered_json()},
                    {"memory_kinds", memory_kinds()}};
  const Answer& answer = judgement.main();
  j["answer"] = {{"headline", text_of(answer.headline)},
                 {"lead", text_of(answer.lead)},
                 {"notes", ordered_json::array()},
                 {"same_losses", text_of(judgement.same_losses)}};
  for (const Sentence& s : judgement.notes) j["answer"]["notes"].push_back(text_of(s));
  j["machine"] = judgement.machine;
  j["modes"] = ordered_json::array();
  for (std::size_t i = 0; i < report.results.size(); ++i)
    j["modes"].push_back(json_of(report, judgement, i, for_page));
  j["answers"] = ordered_json::array();
  for (const Answer& a : judgement.answers)
    j["answers"].push_back(json_of(a, &a == &judgement.answers.back()));
  j["profile"] = report.profile ? ordered_json::parse(to_text(*report.profile)) : ordered_json();
  j["link"] = report.profile ? ordered_json::parse(to_text(report.link)) : ordered_json();
  j["predictions"] = json_of(report, report.predictions, for_page);
  j["simulations"] = json_of(report, report.simulations, for_page);
  j["scaling"] = scaling_of(report);
  j["sweep"] = sweep_of(report);
  return j;
}

std::string text_of(const ordered_json& j, int indent) {
  // Output of a failed mode need not be UTF-8.
  return j.dump(indent, ' ', false, ordered_json::error_handler_t::replace);
}

}  // namespace

std::string json_text(const Report& report, const Judgement& judgement) {
  return text_of(document(report, judgement, false), 2) + "\n";
}

std::string plan_json(const StrategyPlan& plan) { return json_of(plan).dump(); }

std::string page_json(const Report& report, const Judgement& judgement) {
  return json_in_html(text_of(document(report, judgement, true), -1));
}

}  // namespace apps::compare
