#pragma once
// The files of programs/ as strings. The build makes them (apps/CMakeLists.txt).
#include <string>
#include <vector>

namespace apps::compare {

struct Program {
  std::string name, text;
};
extern const std::vector<Program> kPrograms;

}  // namespace apps::compare
