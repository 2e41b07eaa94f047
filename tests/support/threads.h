#pragma once
// Counts threads of this process.
#include <dirent.h>

#include <fstream>
#include <string>

#include "tests/support/catch.h"

/// The number of threads of this process with this name. Threads that OpenMP starts inherit the name of the
/// thread that opens the parallel region.
inline int threads_named(const std::string& name) {
  int count = 0;
  DIR* const tasks = opendir("/proc/self/task");
  REQUIRE(tasks);
  while (const dirent* entry = readdir(tasks)) {
    if (entry->d_name[0] == '.') continue;
    std::string text;
    std::getline(std::ifstream(std::string("/proc/self/task/") + entry->d_name + "/comm"), text);
    count += text == name;
  }
  closedir(tasks);
  return count;
}
