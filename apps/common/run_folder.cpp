#include "tapestry/apps/common/run_folder.h"

#include <cmath>
#include <filesystem>
#include <fstream>
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

// JSON has no NaN: such a value is written as null.
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
  return {json.at("epoch").get<int>(), number("train_loss"),    number("train_accuracy"),
          number("test_loss"),         number("test_accuracy"), number("seconds")};
}

}  // namespace

RunFolder::RunFolder(std::string path, bool resume) : path_(std::move(path)) {
  std::error_code error;
  fs::create_directories(path_, error);
  if (error || !fs::is_directory(path_))
    fail<IoError>("[run] cannot make the folder ", path_, ": ", error.message(),
                  "; choose another --run-dir");
  if (!resume && fs::exists(file("config.json")))
    fail<IoError>("[run] ", path_,
                  " holds a run already; go on with it by --resume, or choose another --run-dir");
}

void RunFolder::write(const std::string& name, const std::string& text) const {
  tapestry::write_file_atomically(file(name), text);
}

std::string RunFolder::read(const std::string& name) const {
  std::ifstream in(file(name), std::ios::binary);
  std::ostringstream text;
  text << in.rdbuf();
  if (!in) fail<IoError>("[run] cannot read ", file(name), "; is ", path_, " the folder of a run?");
  return text.str();
}

std::vector<EpochMetrics> RunFolder::resume_metrics(int last_epoch) const {
  std::vector<EpochMetrics> epochs;
  std::string kept;
  if (!fs::exists(file(kMetrics))) return epochs;
  std::istringstream lines(read(kMetrics));
  std::string line;
  while (std::getline(lines, line)) {
    EpochMetrics m;
    try {
      m = metrics_of(line);
    } catch (const nlohmann::json::exception& e) {
      if (lines.peek() == EOF) break;  // the run was stopped while it wrote this line
      fail<IoError>("[run] ", file(kMetrics), " has a line that is not metrics: ", e.what());
    }
    if (m.epoch > last_epoch) break;
    epochs.push_back(m);
    kept += line + "\n";
  }
  write(kMetrics, kept);
  return epochs;
}

void RunFolder::append(const EpochMetrics& metrics) const {
  std::ofstream out(file(kMetrics), std::ios::app);
  out << line_of(metrics);
  out.flush();
  if (!out) fail<IoError>("[run] cannot write ", file(kMetrics), "; is the disk full?");
}

}  // namespace apps
