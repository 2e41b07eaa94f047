#include "tapestry/apps/compare/report.h"

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "tapestry/apps/common/chart.h"
#include "tapestry/apps/common/svg_text.h"
#include "tapestry/apps/common/table.h"
#include "tapestry/apps/compare/mode.h"
#include "tapestry/apps/compare/models.h"
#include "tapestry/apps/compare/optimizer.h"
#include "tapestry/core/error.h"
#include "tapestry/core/version.h"

namespace apps::compare {
namespace {

using nlohmann::ordered_json;
using tapestry::concat;

constexpr double kMiB = 1 << 20;

std::string fixed(double value, int digits) {
  char text[64];
  std::snprintf(text, sizeof text, "%.*f", digits, value);
  return text;
}

std::string short_number(double value, const char* format) {
  char text[64];
  std::snprintf(text, sizeof text, format, value);
  return text;
}

std::string milliseconds(double seconds) { return fixed(seconds * 1000, 2); }

// Returns sizes in MiB as text, such as "12.1, 8.4".
std::string mebibytes(const std::vector<std::int64_t>& bytes) {
  std::string text;
  for (const std::int64_t b : bytes)
    text += (text.empty() ? "" : ", ") + fixed(static_cast<double>(b) / kMiB, 1);
  return text.empty() ? "-" : text;
}

double samples_per_s(const Report& report, const Result& r) {
  return static_cast<double>(report.workload.batch_size) / r.step_s;
}

// The relative error of the predicted step time.
double prediction_error(const Result& r) { return *r.predicted_step_s / r.step_s - 1; }

// True if the mode ran to its end. Such a mode can still have failed, because its losses differ from those of
// the mode single.
bool measured(const Result& r) { return r.step_s > 0; }

std::vector<std::vector<std::string>> rows_of(const Report& report) {
  std::vector<std::vector<std::string>> rows = {
      {"mode", "samples/s", "step ms", "forward", "backward", "exposed comm", "update", "idle", "peak MiB",
       "sent MiB", "final loss", "difference", "predicted ms", "error", "predicted MiB"}};
  for (const Result& r : report.results) {
    if (!measured(r)) {
      rows.push_back({r.name, "failed"});
      continue;
    }
    rows.push_back({r.name, fixed(samples_per_s(report, r), 1), milliseconds(r.step_s),
                    milliseconds(r.breakdown.forward_s), milliseconds(r.breakdown.backward_s),
                    milliseconds(r.breakdown.exposed_comm_s), milliseconds(r.breakdown.update_s),
                    milliseconds(r.breakdown.idle_s), mebibytes(r.peak_bytes),
                    fixed(static_cast<double>(r.bytes_sent) / kMiB, 2), fixed(r.losses.back(), 6),
                    short_number(r.difference, "%.1e"),
                    r.predicted_step_s ? milliseconds(*r.predicted_step_s) : "-",
                    r.predicted_step_s ? short_number(prediction_error(r) * 100, "%+.1f") + "%" : "-",
                    mebibytes(r.predicted_peak_bytes)});
  }
  return rows;
}

// The names of MemoryKind, in its order.
const std::vector<std::string>& memory_kinds() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> all;
    for (int k = 0; k < tapestry::kNumMemoryKinds; ++k)
      all.emplace_back(tapestry::memory_kind_name(static_cast<tapestry::MemoryKind>(k)));
    return all;
  }();
  return names;
}

ordered_json json_of(const Report& report, const Result& r) {
  ordered_json j = {{"name", r.name}};
  if (!r.error.empty()) j["error"] = r.error;
  if (!measured(r)) return j;
  const auto ms = [](double s) { return s * 1000; };
  j["samples_per_s"] = samples_per_s(report, r);
  j["step_ms"] = ms(r.step_s);
  j["rounds_ms"] = ordered_json::array();
  for (const double s : r.rounds_s) j["rounds_ms"].push_back(ms(s));
  j["forward_ms"] = ms(r.breakdown.forward_s);
  j["backward_ms"] = ms(r.breakdown.backward_s);
  j["exposed_comm_ms"] = ms(r.breakdown.exposed_comm_s);
  j["update_ms"] = ms(r.breakdown.update_s);
  j["idle_ms"] = ms(r.breakdown.idle_s);
  j["devices"] = r.rows;
  j["peak_bytes"] = r.peak_bytes;
  j["memory"] = ordered_json::array();
  for (const MemoryHistory& h : r.memory) {
    ordered_json peak, samples = ordered_json::array();
    for (std::size_t k = 0; k < memory_kinds().size(); ++k) peak[memory_kinds()[k]] = h.peak().bytes[k];
    peak["total"] = h.peak().total();
    for (const tapestry::MemorySample& s : h.samples) samples.push_back({ms(s.seconds), s.bytes});
    j["memory"].push_back({{"device", h.row}, {"peak", std::move(peak)}, {"samples", std::move(samples)}});
  }
  j["bytes_sent"] = r.bytes_sent;
  j["final_loss"] = r.losses.back();
  j["difference_from_single"] = r.difference;
  j["predicted_step_ms"] = r.predicted_step_s ? ordered_json(ms(*r.predicted_step_s)) : ordered_json();
  j["prediction_error"] = r.predicted_step_s ? ordered_json(prediction_error(r)) : ordered_json();
  j["predicted_peak_bytes"] =
      r.predicted_peak_bytes.empty() ? ordered_json() : ordered_json(r.predicted_peak_bytes);
  j["timeline"] = ordered_json::array();
  for (const tapestry::Span& s : r.spans)
    j["timeline"].push_back({{"row", s.row},
                             {"activity", tapestry::activity_name(s.activity)},
                             {"name", s.name},
                             {"begin_ms", ms(s.begin)},
                             {"end_ms", ms(s.end)}});
  return j;
}

ordered_json json_of(const std::vector<planner::Prediction>& predictions) {
  ordered_json all = ordered_json::array();
  const auto ms = [](double s) { return s * 1000; };
  for (const planner::Prediction& p : predictions) {
    ordered_json j = {{"name", p.mode},
                      {"simulated", p.simulated},
                      {"devices", p.devices},
                      {"step_ms", ms(p.step_s)},
                      {"forward_ms", ms(p.breakdown.forward_s)},
                      {"backward_ms", ms(p.breakdown.backward_s)},
                      {"exposed_comm_ms", ms(p.breakdown.exposed_comm_s)},
                      {"update_ms", ms(p.breakdown.update_s)},
                      {"idle_ms", ms(p.breakdown.idle_s)},
                      {"memory", ordered_json::array()}};
    for (const planner::MemoryItems& m : p.memory) {
      ordered_json bytes;
      for (const auto& [name, value] : m.items()) bytes[name] = value;
      bytes["total"] = m.total();
      j["memory"].push_back(std::move(bytes));
    }
    all.push_back(std::move(j));
  }
  return all;
}

std::vector<std::pair<std::string, std::string>> memory_names() {
  std::vector<std::pair<std::string, std::string>> names;
  for (const std::string& kind : memory_kinds()) names.emplace_back(kind, kind);
  return names;
}

std::vector<double> in_mebibytes(const tapestry::MemorySample& sample) {
  std::vector<double> all;
  for (const std::int64_t bytes : sample.bytes) all.push_back(static_cast<double>(bytes) / kMiB);
  return all;
}

// The memory of the device that needs most.
const MemoryHistory& fullest(const Result& r) {
  return *std::max_element(r.memory.begin(), r.memory.end(),
                           [](const auto& a, const auto& b) { return a.peak().total() < b.peak().total(); });
}

// A table with its heading.
struct Section {
  std::string heading;
  std::vector<std::vector<std::string>> rows;
};

// One line with the measured contention and links.
std::string basis_of(const planner::Profile& profile, const planner::Link& link) {
  const auto cost = [](const planner::TransferCost& l) {
    return short_number(l.latency_s * 1e6, "%.1f us + bytes / ") +
           (l.s_per_byte > 0 ? short_number(1e-9 / l.s_per_byte, "%.1f GB/s") : "no limit");
  };
  const auto measured = [](const planner::TransferCost& l) { return l.latency_s > 0 || l.s_per_byte > 0; };
  const auto all_reduce = [&](const planner::AllReduce& a) {
    return cost(a.message) + " per message, " + short_number(a.overlap_slowdown, "%.1f") +
           " times as long while computing, delaying it by " + short_number(a.compute_stall * 100, "%.0f") +
           "% of that";
  };
  const planner::Contention& c = profile.contention;
  std::string text =
      concat({"blocks measured on one device; while all devices compute, they take ",
              short_number(c.forward, "%.2f"), " (forward), ", short_number(c.backward, "%.2f"),
              " (backward) and ", short_number(c.update, "%.2f"), " (update) times as long"});
  if (!measured(link.copy)) return text;
  text += "; copies between devices: " + cost(link.copy) +
          "; all-reduces between threads: " + all_reduce(link.local);
  if (measured(link.ranks.message)) text += "; between processes: " + all_reduce(link.ranks);
  return text;
}

Section memory_section(const Report& report) {
  Section section{"Measured memory of the device that holds most, at that moment, in MiB", {}};
  std::vector<std::string> head = {"mode", "device", "peak"};
  head.insert(head.end(), memory_kinds().begin(), memory_kinds().end());
  section.rows.push_back(std::move(head));
  for (const Result& r : report.results) {
    if (r.memory.empty()) continue;
    const tapestry::MemorySample& peak = fullest(r).peak();
    std::vector<std::string> row = {r.name, fullest(r).row,
                                    fixed(static_cast<double>(peak.total()) / kMiB, 2)};
    for (const double m : in_mebibytes(peak)) row.push_back(fixed(m, 2));
    section.rows.push_back(std::move(row));
  }
  return section;
}

std::vector<Section> tables_below(const Report& report) {
  std::vector<Section> sections;
  if (Section memory = memory_section(report); memory.rows.size() > 1) sections.push_back(std::move(memory));
  if (report.profile)
    sections.push_back({"Predicted, in ms and MiB, from " + basis_of(*report.profile, report.link),
                        prediction_rows(report.predictions)});
  if (!report.simulations.empty())
    sections.push_back({concat({"A simulation, not a measurement, of ", report.simulations.back().devices,
                                " devices, each like the measured one"}),
                        prediction_rows(report.simulations)});
  return sections;
}

std::string html_table(const std::vector<std::vector<std::string>>& rows) {
  std::string out = "<div class='table'><table>\n";
  for (std::size_t r = 0; r < rows.size(); ++r) {
    const char* const tag = r == 0 ? "th" : "td";
    out += "<tr>";
    for (std::size_t c = 0; c < rows[0].size(); ++c)
      out += concat({"<", tag, ">", escaped(c < rows[r].size() ? rows[r][c] : ""), "</", tag, ">"});
    out += "</tr>\n";
  }
  return out + "</table></div>\n";
}

std::string speed_svg(const Report& report) {
  std::vector<Bar> bars;
  for (const Result& r : report.results)
    if (measured(r)) bars.push_back({r.name, {{"value", samples_per_s(report, r)}}});
  return bars_svg(bars, "Speed", "1/s", {{"value", "samples per second"}});
}

std::string breakdown_svg(const Report& report) {
  std::vector<Bar> bars;
  for (const Result& r : report.results)
    if (measured(r))
      bars.push_back({r.name,
                      {{"forward", r.breakdown.forward_s * 1000},
                       {"backward", r.breakdown.backward_s * 1000},
                       {"communication", r.breakdown.exposed_comm_s * 1000},
                       {"optimizer", r.breakdown.update_s * 1000},
                       {"idle", r.breakdown.idle_s * 1000}}});
  return bars_svg(bars, "Where the time of a step goes, mean over the devices", "ms",
                  {{"forward", "forward"},
                   {"backward", "backward"},
                   {"communication", "exposed communication"},
                   {"optimizer", "update"},
                   {"idle", "idle"}});
}

std::string memory_svg(const Report& report) {
  std::vector<Bar> bars;
  for (const Result& r : report.results)
    for (const MemoryHistory& h : r.memory) {
      bars.push_back({r.name + ", " + h.row, {}});
      const std::vector<double> bytes = in_mebibytes(h.peak());
      for (std::size_t k = 0; k < bytes.size(); ++k)
        bars.back().pieces.push_back({memory_kinds()[k], bytes[k]});
    }
  return bars_svg(bars, "Memory of each device when it holds most", "MiB", memory_names());
}

std::string memory_over_time_svg(const Result& r) {
  const MemoryHistory& h = fullest(r);
  std::vector<Level> levels;
  for (const tapestry::MemorySample& s : h.samples) levels.push_back({s.seconds, in_mebibytes(s)});
  return areas_svg(levels, memory_names(), r.name + ": memory of " + h.row + " during one step", "MiB");
}

}  // namespace

std::string headline(const Report& report) {
  const Workload& w = report.workload;
  std::string devices;
  for (const std::string& name : report.device_names) devices += (devices.empty() ? "" : ", ") + name;
  const auto some = [](int n, const char* what) { return concat({n, " ", what, n == 1 ? "" : "s"}); };
  const std::string data = reads_images(w) ? concat({"images of ", w.image_size, "x", w.image_size})
                                           : concat({"sequences of ", w.length, " tokens"});
  std::string text = concat(
      {w.model, " on ", data, ", batch of ", w.batch_size, ", ", w.dtype, ", ", optimizer_title(w), "; "});
  text += some(w.devices, "device") + " (" + devices + "), " + some(w.threads, "CPU thread") + ", ";
  return text + concat({w.threads_per_device(), " per device; ", some(report.rounds, "round"), " of ",
                        w.steps, " steps"});
}

std::string legend(const Report& report) {
  const Workload& w = report.workload;
  return concat(
      {"Times are in ms, from the step with the median time, as means over the devices: forward, backward, "
       "exposed comm, update and idle add up to the step. The mode single runs on one device, with that "
       "device's part of the threads. Peak: the largest amount of tensor memory per device. Sent: bytes that "
       "go "
       "from one device to another per step, over all devices; averaging gradients counts as a ring "
       "all-reduce. Difference: between the losses of all ",
       w.warmup + w.steps, " steps and those of single, norm-wise; a mode with more than ",
       short_number(tolerance(w), "%.0e"), " has failed. Pipelines use ", w.micro_batches,
       " micro-batches."});
}

std::string table(const Report& report, bool markdown) {
  const auto rows = rows_of(report);
  return markdown ? markdown_table(rows) : text_table(rows);
}

std::string prediction_text(const Report& report, bool markdown) {
  std::string text;
  for (const Section& s : tables_below(report))
    text += "\n" + s.heading + "\n\n" + (markdown ? markdown_table(s.rows) : text_table(s.rows));
  return text;
}

std::string json_text(const Report& report) {
  const Workload& w = report.workload;
  ordered_json j = {{"version", tapestry::version()},
                    {"options",
                     {{"model", w.model},
                      {"batch_size", w.batch_size},
                      {"image_size", w.image_size},
                      {"length", w.length},
                      {"dtype", concat({w.dtype})},
                      {"devices", w.devices},
                      {"threads", w.threads},
                      {"micro_batches", w.micro_batches},
                      {"warmup", w.warmup},
                      {"steps", w.steps},
                      {"rounds", report.rounds},
                      {"optimizer", w.optimizer},
                      {"momentum", w.momentum},
                      {"lr", w.learning_rate()},
                      {"seed", w.seed},
                      {"split", w.split}}},
                    {"devices", report.device_names},
                    {"threads_per_device", w.threads_per_device()},
                    {"tolerance", tolerance(w)},
                    {"memory_kinds", memory_kinds()},
                    {"modes", ordered_json::array()}};
  for (const Result& r : report.results) j["modes"].push_back(json_of(report, r));
  j["profile"] = report.profile ? ordered_json::parse(to_text(*report.profile)) : ordered_json();
  j["link"] = report.profile ? ordered_json::parse(to_text(report.link)) : ordered_json();
  j["predictions"] = json_of(report.predictions);
  j["simulations"] = json_of(report.simulations);
  return j.dump(2) + "\n";
}

std::vector<Picture> pictures(const Report& report) {
  std::vector<Picture> all = {{"speed.svg", speed_svg(report)},
                              {"step.svg", breakdown_svg(report)},
                              {"memory.svg", memory_svg(report)}};
  for (const Result& r : report.results)
    if (!r.memory.empty()) all.push_back({"memory-" + r.name + ".svg", memory_over_time_svg(r)});
  for (const Result& r : report.results)
    if (measured(r))
      all.push_back(
          {"timeline-" + r.name + ".svg",
           timeline_svg(r.spans, r.rows, r.step_s, r.name + ": " + mode_named(r.name).description)});
  return all;
}

std::vector<std::vector<std::string>> prediction_rows(const std::vector<planner::Prediction>& predictions) {
  std::vector<std::string> head = {"mode",         "devices", "step ms", "forward", "backward",
                                   "exposed comm", "update",  "idle",    "peak MiB"};
  for (const auto& item : planner::MemoryItems().items()) head.push_back(item.first);
  std::vector<std::vector<std::string>> rows = {head};
  for (const planner::Prediction& p : predictions) {
    std::vector<std::string> row = {p.mode, std::to_string(p.devices)};
    for (const double s : {p.step_s, p.breakdown.forward_s, p.breakdown.backward_s,
                           p.breakdown.exposed_comm_s, p.breakdown.update_s, p.breakdown.idle_s})
      row.push_back(milliseconds(s));
    row.push_back(fixed(p.largest().total() / kMiB, 2));
    for (const auto& item : p.largest().items()) row.push_back(fixed(item.second / kMiB, 2));
    rows.push_back(std::move(row));
  }
  return rows;
}

std::string page(const Report& report) {
  std::string out =
      "<!DOCTYPE html>\n<html lang='en'>\n<head>\n<meta charset='utf-8'/>\n"
      "<meta name='viewport' content='width=device-width'/>\n<title>tapestry-compare</title>\n<style>\n"
      ":root{color-scheme:light dark}\n"
      "body{font:15px/1.5 sans-serif;max-width:1100px;margin:2em auto;padding:0 1em}\n"
      ".table{overflow-x:auto}\ntable{border-collapse:collapse}\n"
      "th,td{padding:.25em .7em;text-align:right;border-bottom:1px solid #8886;white-space:nowrap}\n"
      "th:first-child,td:first-child{text-align:left}\n.error{color:#c33;white-space:pre-wrap}\n"
      "svg{display:block;margin:1em 0}\n</style>\n</head>\n<body>\n<h1>Training modes compared</h1>\n<p>";
  out += escaped(headline(report)) + "</p>\n" + html_table(rows_of(report));
  out += "<p>" + escaped(legend(report)) + "</p>\n";
  for (const Result& r : report.results)
    if (!r.error.empty()) out += "<p class='error'>" + escaped(r.name + ": " + r.error) + "</p>\n";
  for (const Picture& p : pictures(report)) out += p.svg;
  for (const Section& s : tables_below(report))
    out += "<h2>" + escaped(s.heading) + "</h2>\n" + html_table(s.rows);
  return out + "</body>\n</html>\n";
}

}  // namespace apps::compare
