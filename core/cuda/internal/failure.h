#pragma once
// The text of a call that failed. Knows no CUDA, so that it is tested without.
#include <cstdint>
#include <string>

#include "tapestry/core/source_location.h"

namespace tapestry::cuda {

/// A kind of failure, by what to do about it.
enum class Remedy : std::uint8_t { none, memory, kernel, driver, device };

struct Failure {
  std::string call;  ///< "cudaStreamQuery(stream)"
  int gpu = -1;      ///< -1: none was chosen
  std::string name;  ///< "cudaErrorIllegalAddress"
  std::string text;  ///< "an illegal memory access was encountered"
  Remedy remedy = Remedy::none;
};

/// "[cuda] cudaStreamQuery(stream) failed on GPU 0 at runtime.cpp:88: ..."
std::string failure_text(const Failure& failure, const SourceLocation& where);

}  // namespace tapestry::cuda
