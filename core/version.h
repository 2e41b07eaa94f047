#pragma once
#include <string>

namespace tapestry {

/// The version of the linked library, for example "0.1.0".
const char* version();

/// What --version of the programs prints, in lines: the program and the version, the processors and the libraries
/// that the build is for, and the libraries that are found on this machine. Opens NVIDIA's libraries if the
/// build has CUDA.
std::string version_text(const std::string& program);

}  // namespace tapestry
