#pragma once
// A folder that stands for the root folder of a system with control groups (cgroups).
#include <filesystem>
#include <string>

#include "tests/support/files.h"

namespace tests {

class FakeCgroups {
 public:
  /// `membership` is the content of /proc/self/cgroup.
  explicit FakeCgroups(const std::string& membership) { write("proc/self/cgroup", membership); }
  /// Writes a file below /sys/fs/cgroup.
  void set(const std::string& name, const std::string& text) { write("sys/fs/cgroup/" + name, text); }
  std::string root() const { return dir_.path().string(); }

 private:
  void write(const std::string& name, const std::string& text) {
    std::filesystem::create_directories(std::filesystem::path(dir_ / name).parent_path());
    write_file(dir_ / name, text);
  }
  TempDir dir_;
};

}  // namespace tests
