#pragma once
// The folder of a run: config.json, metrics.jsonl, the pictures.
#include <string>
#include <vector>

#include "tapestry/apps/common/svg.h"

namespace apps {

class RunFolder {
 public:
  /// Makes the folder. Throws IoError if it cannot be written, and unless `resume` if there is a run in it
  /// already.
  RunFolder(std::string path, bool resume);

  const std::string& path() const { return path_; }
  std::string file(const std::string& name) const { return path_ + "/" + name; }

  /// Replaces a file as a whole: a crash leaves the old one or the new one. Throws IoError.
  void write(const std::string& name, const std::string& text) const;
  /// Throws IoError.
  std::string read(const std::string& name) const;

  /// The epochs in metrics.jsonl up to `last_epoch`; the file is cut back to them. Throws IoError for lines
  /// that are not metrics, but for a last one that was cut off.
  std::vector<EpochMetrics> resume_metrics(int last_epoch) const;
  /// Appends a line to metrics.jsonl.
  void append(const EpochMetrics& metrics) const;

 private:
  std::string path_;
};

}  // namespace apps
