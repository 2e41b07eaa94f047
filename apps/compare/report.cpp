#include "tapestry/apps/compare/report.h"

#include <algorithm>
#include <cstdio>

#include "tapestry/apps/common/chart.h"
#include "tapestry/apps/common/table.h"
#include "tapestry/apps/compare/mode.h"
#include "tapestry/apps/compare/models.h"
#include "tapestry/apps/compare/optimizer.h"
#include "tapestry/core/error.h"

namespace apps::compare {
namespace {

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

std::vector<std::vector<std::string>> rows_of(const Report& report) {
  std::vector<std::vector<std::string>> rows = {
      {"mode", "samples/s", "step ms", "forward", "backward", "exposed comm", "update", "idle", "peak MiB",
       "sent MiB", "final loss", "difference", "predicted ms", "error", "predicted MiB"}};
  for (const Result& r : report.results) {
    if (!r.measured()) {
      rows.push_back({r.name, "failed"});
      continue;
    }
    rows.push_back({r.name, fixed(samples_per_s(report, r), 1), milliseconds(r.step_s),
                    milliseconds(r.breakdown.forward_s), milliseconds(r.breakdown.backward_s),
                    milliseconds(r.breakdown.exposed_comm_s), milliseconds(r.breakdown.update_s),
                    milliseconds(r.breakdown.idle_s), mebibytes(r.peak_bytes),
                    fixed(static_cast<double>(r.bytes_sent()) / kMiB, 2), fixed(r.losses.back(), 6),
                    short_number(r.difference, "%.1e"),
                    r.predicted_step_s ? milliseconds(*r.predicted_step_s) : "-",
                    r.predicted_step_s ? short_number(r.prediction_error() * 100, "%+.1f") + "%" : "-",
                    mebibytes(r.predicted_peak_bytes)});
  }
  return rows;
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
  if (!measured(link.copy)) return text + "; no link was measured, and communication takes no time";
  text += "; copies between devices: " + cost(link.copy) +
          "; all-reduces between threads: " + all_reduce(link.local);
  if (measured(link.ranks.message)) text += "; between processes: " + all_reduce(link.ranks);
  return text;
}

constexpr std::size_t kMostMeshRows = 20;

std::vector<std::vector<std::string>> sweep_rows(const std::vector<planner::Prediction>& sweep) {
  std::vector<std::vector<std::string>> rows = {
      {"mesh", "step ms", "exposed comm", "bubble", "peak MiB", "loses"}};
  for (std::size_t i = 0; i < std::min(sweep.size(), kMostMeshRows); ++i) {
    const planner::Prediction& p = sweep[i];
    rows.push_back({p.mode, milliseconds(p.step_s), milliseconds(p.breakdown.exposed_comm_s),
                    milliseconds(p.bubble_s), fixed(p.largest().total() / kMiB, 2), planner::why(p)});
  }
  return rows;
}

// What each axis of the modes with several axes sends and waits for.
Section axes_section(const Report& report) {
  Section section{
      "Axes of the modes that combine several: MiB sent and ms of exposed communication, "
      "measured and predicted",
      {{"mode", "axis", "sent MiB", "predicted", "exposed ms", "predicted"}}};
  for (const Result& r : report.results)
    for (const auto& [axis, size] : r.sending_axes()) {
      if (r.axes.size() < 2 || !r.measured()) continue;
      std::vector<std::string> row = {
          r.name, concat({axis, "=", size}), fixed(static_cast<double>(r.bytes_sent(axis)) / kMiB, 2), "", "",
          ""};
      for (const auto& [name, seconds] : r.exposed_s)
        if (name == axis) row[4] = milliseconds(seconds);
      for (const planner::AxisCost& p : r.predicted_axes)
        if (p.axis == axis) row[3] = fixed(p.bytes_sent / kMiB, 2), row[5] = milliseconds(p.exposed_s);
      section.rows.push_back(std::move(row));
    }
  return section;
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
  if (Section axes = axes_section(report); axes.rows.size() > 1) sections.push_back(std::move(axes));
  if (report.profile)
    sections.push_back({"Predicted, in ms and MiB, from " + basis_of(*report.profile, report.link),
                        prediction_rows(report.predictions)});
  if (!report.sweep.empty()) {
    const int per_host = report.workload.devices_per_host;
    const std::size_t count = report.sweep.size();
    sections.push_back(
        {concat({count > kMostMeshRows ? concat({"The fastest ", kMostMeshRows, " of ", count, " meshes of "})
                                       : std::string("All meshes of "),
                 report.sweep.front().devices, " devices, each like the measured one",
                 per_host > 0 ? concat({", ", per_host, " on a host"}) : std::string(),
                 ": a prediction, not a measurement", count > kMostMeshRows ? "; --json writes all" : ""}),
         sweep_rows(report.sweep)});
  }
  if (!report.simulations.empty())
    sections.push_back({concat({"A simulation, not a measurement, of ", report.simulations.back().devices,
                                " devices, each like the measured one"}),
                        prediction_rows(report.simulations)});
  return sections;
}

std::string speed_svg(const Report& report) {
  std::vector<Bar> bars;
  for (const Result& r : report.results)
    if (r.measured()) bars.push_back({r.name, {{"value", samples_per_s(report, r)}}});
  return bars_svg(bars, "Speed", "1/s", {{"value", "samples per second"}});
}

std::string breakdown_svg(const Report& report) {
  std::vector<Bar> bars;
  for (const Result& r : report.results)
    if (r.measured())
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

const std::vector<std::string>& memory_kinds() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> all;
    for (int k = 0; k < tapestry::kNumMemoryKinds; ++k)
      all.emplace_back(tapestry::memory_kind_name(static_cast<tapestry::MemoryKind>(k)));
    return all;
  }();
  return names;
}

const MemoryHistory& fullest(const Result& r) {
  return *std::max_element(r.memory.begin(), r.memory.end(),
                           [](const auto& a, const auto& b) { return a.peak().total() < b.peak().total(); });
}

double samples_per_s(const Report& report, const Result& r) {
  return static_cast<double>(report.workload.batch_size) / r.step_s;
}

std::string setup_line(const Report& report) {
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
  std::string unable;
  for (const Limit& l : report.limits)
    if (!report.simulations.empty() && l.devices == report.simulations.back().devices)
      unable += concat({l.mode, ": cannot run on ", l.devices, " devices, since ", l.reason, "\n"});
  return unable.empty() ? text : text + "\n" + unable;
}

std::vector<Picture> pictures(const Report& report) {
  std::vector<Picture> all = {{"speed.svg", speed_svg(report)},
                              {"step.svg", breakdown_svg(report)},
                              {"memory.svg", memory_svg(report)}};
  for (const Result& r : report.results)
    if (!r.memory.empty()) all.push_back({"memory-" + r.name + ".svg", memory_over_time_svg(r)});
  for (const Result& r : report.results)
    if (r.measured())
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

}  // namespace apps::compare
