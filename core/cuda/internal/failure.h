#pragma once
// The message of a failed CUDA call. It is independent of CUDA, so that builds without CUDA can test it.
#include <cstdint>
#include <string>

#include "tapestry/core/source_location.h"

namespace tapestry::cuda {

/// Classifies a failure by what the user can do about it.
enum class Remedy : std::uint8_t { none, memory, kernel, driver, device };

struct Failure {
  std::string call;  ///< "cudaStreamQuery(stream)"
  int gpu = -1;      ///< -1 if unknown
  std::string name;  ///< "cudaErrorIllegalAddress"
  std::string text;  ///< "an illegal memory access was encountered"
  Remedy remedy = Remedy::none;
};

/// The message, such as "[cuda] cudaStreamQuery(stream) failed on GPU 0 at runtime.cpp:88: ..."
std::string failure_text(const Failure& failure, const SourceLocation& where);

}  // namespace tapestry::cuda
