#pragma once
// Helpers for tests that need a GPU:
//
//   TEST_CASE("...") {
//     if (no_gpu()) return;
#include <cstdio>
#include <cstdlib>
#include <string_view>

#include "tapestry/core/cuda/device.h"
#include "tests/support/catch.h"

/// Returns true and prints a message if there are fewer than `wanted` GPUs. If TAPESTRY_REQUIRE_CUDA is 1, a
/// machine without any GPU also fails the test.
inline bool no_gpu(int wanted = 1) {
  const int count = tapestry::device_count(tapestry::DeviceType::cuda);
  if (count >= wanted) return false;
  const char* const variable = std::getenv("TAPESTRY_REQUIRE_CUDA");
  const bool required = wanted == 1 && variable && std::string_view(variable) == "1";
  std::printf("%s: no CUDA device (%d of %d; %s)\n", required ? "required" : "skipped", count, wanted,
              tapestry::cuda::why_no_device().c_str());
  CHECK_FALSE(required);
  return true;
}
