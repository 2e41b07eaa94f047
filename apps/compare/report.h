#pragma once
// A comparison as a table, as JSON, and as a page with pictures.
#include <optional>
#include <string>
#include <vector>

#include "tapestry/apps/compare/predict.h"
#include "tapestry/apps/compare/profile.h"
#include "tapestry/apps/compare/result.h"
#include "tapestry/apps/compare/workload.h"

namespace apps::compare {

struct Report {
  Workload workload;
  int rounds = 1;
  std::vector<std::string> device_names;  ///< "cpu:0", "cuda:1 (NVIDIA H200)"
  std::vector<Result> results;
  std::optional<Profile> profile;  ///< what predictions are made from; none: there are none
  Link link;
  std::vector<Prediction> predictions;  ///< of those modes that have one
  std::vector<Prediction> simulations;  ///< of more devices, if asked for
};

/// One line: what was trained, on what.
std::string headline(const Report& report);
/// What the columns mean.
std::string legend(const Report& report);
std::string table(const Report& report, bool markdown);
/// What the predictions in the table are made of, and simulations, each with its heading.
std::string prediction_text(const Report& report, bool markdown);
std::string json_text(const Report& report);

struct Picture {
  std::string file;  ///< "speed.svg"
  std::string svg;
};
std::vector<Picture> pictures(const Report& report);
/// One file that needs no other.
std::string page(const Report& report);

}  // namespace apps::compare
