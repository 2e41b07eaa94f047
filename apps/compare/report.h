#pragma once
// Presents a comparison as a table, as JSON, and as an HTML page with pictures.
#include <optional>
#include <string>
#include <vector>

#include "tapestry/apps/compare/result.h"
#include "tapestry/apps/compare/workload.h"

namespace apps::compare {

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
};

/// One line with the model, the batch and the devices.
std::string headline(const Report& report);
/// Explains the columns of the table.
std::string legend(const Report& report);
std::string table(const Report& report, bool markdown);
/// Tables with the measured memory by kind, and with the time and memory items of predictions and
/// simulations, with headings.
std::string prediction_text(const Report& report, bool markdown);
std::string json_text(const Report& report);

struct Picture {
  std::string file;  ///< "speed.svg"
  std::string svg;
};
std::vector<Picture> pictures(const Report& report);
/// A self-contained HTML page.
std::string page(const Report& report);

/// The rows of a table of predictions for text_table, with a header row. Memory is that of the device that
/// needs most.
std::vector<std::vector<std::string>> prediction_rows(const std::vector<planner::Prediction>& predictions);

}  // namespace apps::compare
