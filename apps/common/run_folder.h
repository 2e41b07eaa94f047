#pragma once
// The folder of a run: config.json, metrics.jsonl, the pictures.
#include <string>
#include <vector>

#include "tapestry/apps/common/svg.h"

namespace apps {

/// The whole of a file. Throws IoError.
std::string read_text(const std::string& path);

class RunFolder {
 public:
  /// Makes the folder. Throws IoError if it cannot be made, and unless `resume` if there is a run in it
  /// already.
  RunFolder(std::string path, bool resume);
  /// For the ranks that write nothing, in a run of several: all calls do nothing.
  RunFolder() = default;

  const std::string& path() const { return path_; }
  std::string file(const std::string& name) const { return path_ + "/" + name; }

  /// Replaces a file as a whole: a crash or a full disk leaves the old one or the new one. Throws IoError.
  void write(const std::string& name, const std::string& text) const;

  /// metrics.jsonl: one JSON object an epoch. The file is replaced as a whole, so that each line is one.
  void write_metrics(const std::vector<EpochMetrics>& epochs) const;
  /// Those up to `last_epoch`. Throws IoError for lines that are not metrics.
  std::vector<EpochMetrics> read_metrics(int last_epoch) const;

 private:
  std::string path_;  // empty: writes nothing
};

}  // namespace apps
