#pragma once
// Which threads this process has.
#include <dirent.h>

#include <fstream>
#include <string>

#include "tests/support/catch.h"

/// How many threads of this process have this name. A thread that opens an OpenMP region gives its name to
/// the ones that it starts.
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
