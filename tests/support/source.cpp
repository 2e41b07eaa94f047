#include "tests/support/source.h"

#include <cstdlib>

// This file alone is compiled with the path of the source tree. All other object files are identical in every
// clone, so clones share the compiler cache.
std::string tests::source_path(const std::string& name) {
  // tools/gpu_check brings compiled tests to another machine, where the tree is in another folder.
  const char* const moved = std::getenv("TAPESTRY_SOURCE_DIR");
  const std::string root = moved ? moved : TAPESTRY_SOURCE_DIR;
  return name.empty() ? root : root + "/" + name;
}
