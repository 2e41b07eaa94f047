#include "tapestry/apps/common/run_folder.h"

#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <sstream>

#include "tapestry/core/atomic_file.h"
#include "tapestry/core/error.h"

namespace apps {

namespace fs = std::filesystem;
using tapestry::fail;
using tapestry::IoError;

namespace {

constexpr const char* kMetrics = "metrics.jsonl";

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

std::string read_text(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::ostringstream text;
  text << in.rdbuf();
  if (!in) fail<IoError>("[run] cannot read ", path, "; check that the folder holds a run");
  return text.str();
}

RunFolder::RunFolder(std::string path, bool resume) : path_(std::move(path)) {
  std::error_code error;
  fs::create_directories(path_, error);
  std::error_code ignored;
  if (!fs::is_directory(path_, ignored))
    fail<IoError>("[run] cannot create the folder ", path_, ": ", error.message(),
                  "; choose another --run-dir");
  lock_ = std::make_shared<tapestry::FolderLock>("run", path_);
  if (!resume && fs::exists(file("config.json")))
    fail<IoError>("[run] ", path_,
                  " already holds a run; continue it with --resume or choose another --run-dir");
  tapestry::remove_abandoned_files(path_, [](const std::string& name) {
    return name == "config.json" || name == "metrics.jsonl" || name == "curves.svg" ||
           name == "confusion.svg" || name == "mistakes.svg";
  });
}

void RunFolder::write(const std::string& name, const std::string& text) const {
  if (!path_.empty()) tapestry::write_file_atomically(file(name), text);
}

void RunFolder::write_metrics(const std::vector<EpochMetrics>& epochs) const {
  std::string lines;
  for (const EpochMetrics& epoch : epochs) lines += line_of(epoch);
  write(kMetrics, lines);
}

std::vector<EpochMetrics> RunFolder::read_metrics(int last_epoch) const {
  std::vector<EpochMetrics> epochs;
  if (path_.empty() || !fs::exists(file(kMetrics))) return epochs;
  std::istringstream lines(read_text(file(kMetrics)));
  std::string line;
  const auto damaged = [&](const std::string& why) {
    fail<IoError>("[run] ", file(kMetrics), ": line ", epochs.size() + 1, " is not metrics: ", why,
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
