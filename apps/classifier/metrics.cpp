#include "tapestry/apps/classifier/metrics.h"

#include <cmath>
#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>
#include <sstream>

#include "tapestry/apps/common/run_folder.h"
#include "tapestry/core/error.h"

namespace apps {

namespace {

// JSON has no NaN or infinity, so these values are written as null.
std::string line_of(const EpochMetrics& m) {
  const auto number = [](double v) {
    return std::isfinite(v) ? nlohmann::ordered_json(v) : nlohmann::ordered_json();
  };
  const nlohmann::ordered_json json = {{"epoch", m.epoch},
                                       {"train_loss", number(m.train_loss)},
                                       {"train_accuracy", number(m.train_accuracy)},
                                       {"test_loss", number(m.test_loss)},
                                       {"test_accuracy", number(m.test_accuracy)},
                                       {"seconds", number(m.seconds)}};
  return json.dump() + "\n";
}

EpochMetrics metrics_of(const std::string& line) {
  const auto json = nlohmann::json::parse(line);
  const auto number = [&](const char* name) {
    return json.at(name).is_null() ? NAN : json.at(name).get<double>();
  };
  const nlohmann::json& epoch = json.at("epoch");
  const std::int64_t n = epoch.is_number_integer() ? epoch.get<std::int64_t>() : -1;
  return {n > 0 && n <= std::numeric_limits<int>::max() ? static_cast<int>(n) : -1,
          number("train_loss"),
          number("train_accuracy"),
          number("test_loss"),
          number("test_accuracy"),
          number("seconds")};
}

}  // namespace

std::string to_lines(const std::vector<EpochMetrics>& epochs) {
  std::string lines;
  for (const EpochMetrics& epoch : epochs) lines += line_of(epoch);
  return lines;
}

std::vector<EpochMetrics> read_metrics(const std::string& path, int last_epoch) {
  std::vector<EpochMetrics> epochs;
  if (!std::filesystem::exists(path)) return epochs;
  std::istringstream lines(read_text(path));
  std::string line;
  const auto damaged = [&](const std::string& why) {
    tapestry::fail<tapestry::IoError>(
        "[run] ", path, ": line ", epochs.size() + 1, " is not metrics: ", why,
        "; restore the file, or delete it to continue without the earlier epochs");
  };
  while (std::getline(lines, line)) {
    EpochMetrics metrics;
    try {
      metrics = metrics_of(line);
    } catch (const nlohmann::json::exception& e) {
      damaged(e.what());
    }
    const int previous = epochs.empty() ? 0 : epochs.back().epoch;
    if (metrics.epoch <= previous) damaged(tapestry::concat({"its epoch does not follow epoch ", previous}));
    if (metrics.epoch > last_epoch) break;
    epochs.push_back(metrics);
  }
  return epochs;
}

}  // namespace apps
