#include "tests/support/source.h"

// This file alone is compiled with the path of the source tree. All other object files are identical in every
// clone, so clones share the compiler cache.
std::string tests::source_path(const std::string& name) {
  const std::string root = TAPESTRY_SOURCE_DIR;
  return name.empty() ? root : root + "/" + name;
}
