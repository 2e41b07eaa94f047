#pragma once
#include <string>

namespace tests {

/// The path of a file of the source tree, of its root for "".
std::string source_path(const std::string& name);

}  // namespace tests
