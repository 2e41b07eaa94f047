#pragma once
#include <string>

namespace tapestry {

/// The version of the linked library, for example "0.1.0".
const char* version();

/// Returns the lines that --version of a program prints: the version, the processors and the libraries that
/// the program was built for, and the file of the library that was loaded. In a build with CUDA, lines about
/// NVIDIA's libraries follow, which are opened to find their versions.
std::string version_text(const std::string& program);

}  // namespace tapestry
