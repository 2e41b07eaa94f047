#pragma once
// Runs each code block of the documentation in a temporary folder, which is removed afterwards.
#include <filesystem>

#include "tests/support/files.h"

namespace tests {

class InTempDir {
 public:
  InTempDir() { std::filesystem::current_path(folder_.path()); }
  ~InTempDir() {
    std::error_code error;
    std::filesystem::current_path(before_, error);
  }
  InTempDir(const InTempDir&) = delete;
  InTempDir& operator=(const InTempDir&) = delete;

 private:
  const TempDir folder_;
  const std::filesystem::path before_ = std::filesystem::current_path();
};

}  // namespace tests
