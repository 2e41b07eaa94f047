#pragma once
#include <string>

namespace tests {

/// The absolute path of a file in the source tree; `name` = "" gives the root.
std::string source_path(const std::string& name);

}  // namespace tests
