#pragma once
// Several runs of the classifier on the same small data set.
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "tests/apps/program.h"
#include "tests/apps/run_files.h"
#include "tests/support/files.h"

namespace tests {

/// A temporary folder with data and several runs, which have the same options.
class Runs {
 public:
  explicit Runs(std::vector<std::string> options) : options_(std::move(options)) {
    write_fashion_mnist(folder_ / "data");
  }
  std::string dir(const std::string& name) const { return folder_ / name; }
  Launch start(const std::string& name, const std::vector<std::string>& more = {}) const {
    std::vector<std::string> all = {"--data-dir", dir("data"), "--run-dir", dir(name), "--threads", "1"};
    all.insert(all.end(), options_.begin(), options_.end());
    all.insert(all.end(), more.begin(), more.end());
    return {.arguments = all};
  }
  Launch resume(const std::string& name, const std::vector<std::string>& more = {}) const {
    std::vector<std::string> all = {"--resume", "--run-dir", dir(name)};
    all.insert(all.end(), more.begin(), more.end());
    return {.arguments = all};
  }
  bool started(const std::string& name) const { return std::filesystem::exists(dir(name) + "/config.json"); }
  std::string result(const std::string& name) const {
    return metrics(dir(name)) + last_checkpoint(dir(name));
  }

 private:
  TempDir folder_;
  std::vector<std::string> options_;
};

}  // namespace tests
