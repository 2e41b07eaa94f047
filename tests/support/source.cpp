#include "tests/support/source.h"

// Only this file is compiled with the path of the source tree, so that all other objects are identical in
// every clone (for the compiler cache).
std::string tests::source_path(const std::string& name) {
  const std::string root = TAPESTRY_SOURCE_DIR;
  return name.empty() ? root : root + "/" + name;
}
