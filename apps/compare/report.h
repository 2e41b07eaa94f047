#pragma once
// A comparison, and its tables and pictures.
#include <optional>
#include <string>
#include <vector>

#include "tapestry/apps/compare/host.h"
#include "tapestry/apps/compare/result.h"
#include "tapestry/apps/compare/workload.h"

namespace apps::compare {

/// A number of devices on which a mode cannot run.
struct Limit {
  std::string mode;
  int devices = 0;
  std::string reason;  ///< "the model has 6 blocks"
};

/// What the user assumes of a link between simulated devices; a value that is not given is measured.
struct GivenLink {
  std::optional<double> latency_us, bandwidth_gbs;
};

struct Report {
  Workload workload;
  int rounds = 1;
  std::vector<std::string> device_names;  ///< "cpu:0", "cuda:1 (NVIDIA H200)"
  std::vector<Result> results;
  /// The measured costs behind the predictions. If there is no profile, there are no predictions.
  std::optional<planner::Profile> profile;
  planner::Link link;
  std::vector<planner::Prediction> predictions;  ///< one per mode that the planner knows
  std::vector<planner::Prediction> simulations;  ///< for Options::predict_devices
  std::vector<planner::Prediction> scaling;      ///< for 1, 2, 4, ... devices, each like the measured one
  std::vector<planner::Prediction> sweep;        ///< of all meshes for Options::meshes, fastest first
  GivenLink given_link, given_cross;             ///< inside a host, and between hosts
  std::vector<Limit> limits;                     ///< of `scaling` and `simulations`
  std::vector<std::string> command;              ///< the arguments of this program
  std::string began;                             ///< ISO 8601
  double seconds = 0;                            ///< of the whole comparison
  Host host;
  double load_begin = -1, load_end = -1;           ///< see load_average()
  std::optional<std::int64_t> memory_limit_bytes;  ///< the memory of the smallest GPU
};

/// The names of MemoryKind, in its order.
const std::vector<std::string>& memory_kinds();
/// The memory of the device that needs most. Result::memory must not be empty.
const MemoryHistory& fullest(const Result& result);
double samples_per_s(const Report& report, const Result& result);

/// One line with the model, the batch and the devices.
std::string setup_line(const Report& report);
/// Explains the columns of the table.
std::string legend(const Report& report);
std::string table(const Report& report, bool markdown);
/// Tables with the measured memory by kind, and with the time and memory items of predictions and
/// simulations, with headings.
std::string prediction_text(const Report& report, bool markdown);

struct Picture {
  std::string file;  ///< "speed.svg"
  std::string svg;
};
std::vector<Picture> pictures(const Report& report);

/// The rows of a table of predictions for text_table, with a header row. Memory is that of the device that
/// needs most.
std::vector<std::vector<std::string>> prediction_rows(const std::vector<planner::Prediction>& predictions);

}  // namespace apps::compare
