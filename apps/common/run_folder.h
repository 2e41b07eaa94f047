#pragma once
// The folder of a training run: config.json, metrics.jsonl, pictures, checkpoints.
#include <memory>
#include <string>

#include "tapestry/core/folder_lock.h"

namespace apps {

/// Reads a whole file. Throws IoError if it cannot be read.
std::string read_text(const std::string& path);

class RunFolder {
 public:
  /// Creates the folder and locks it, so that no second job writes to it until this object is destroyed. Then
  /// removes temporary files that killed jobs left behind. Throws IoError if the folder cannot be created,
  /// if another job has locked it, or if it already holds a run and `resume` is false.
  RunFolder(std::string path, bool resume);
  /// A folder that ignores all writes, for the ranks other than 0.
  RunFolder() = default;

  const std::string& path() const { return path_; }
  std::string file(const std::string& name) const { return path_ + "/" + name; }

  /// Replaces a file atomically: after a crash or on a full disk the file is the old one or the new one.
  /// Throws IoError.
  void write(const std::string& name, const std::string& text) const;

 private:
  std::string path_;  // if empty, writes are ignored
  std::shared_ptr<tapestry::FolderLock> lock_;
};

}  // namespace apps
