#pragma once
// For tests that need a real GPU:
//
//   TEST_CASE("...") {
//     if (no_gpu()) return;
#include <cstdio>
#include <cstdlib>
#include <string_view>

#include "tapestry/core/cuda/device.h"
#include "tests/support/catch.h"

/// Set by a program whose CUDA devices are emulated: makes them unless they are there.
inline void (*make_devices)() = nullptr;

/// True if there are fewer than `wanted` GPUs; says so, and fails where TAPESTRY_REQUIRE_CUDA=1.
inline bool no_gpu(int wanted = 1) {
  if (make_devices) make_devices();
  const int count = tapestry::device_count(tapestry::DeviceType::cuda);
  if (count >= wanted) return false;
  const char* const variable = std::getenv("TAPESTRY_REQUIRE_CUDA");
  const bool required = wanted == 1 && variable && std::string_view(variable) == "1";
  std::printf("%s: no CUDA device (%d of %d; %s)\n", required ? "required" : "skipped", count, wanted,
              tapestry::cuda::why_no_device().c_str());
  CHECK_FALSE(required);
  return true;
}
