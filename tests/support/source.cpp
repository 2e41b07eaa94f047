#include "tests/support/source.h"

// The one file that is compiled with the tree's path: all others have the same objects in every clone.
std::string tests::source_path(const std::string& name) {
  const std::string root = TAPESTRY_SOURCE_DIR;
  return name.empty() ? root : root + "/" + name;
}
