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

/// True if there are fewer than `wanted` GPUs; says so, and fails where TAPESTRY_REQUIRE_CUDA=1.
inline bool no_gpu(int wanted = 1) {
  const int count = tapestry::device_count(tapestry::DeviceType::cuda);
  if (count >= wanted) return false;
  std::printf("skipped: no CUDA device (%d of %d; %s)\n", count, wanted,
              tapestry::cuda::why_no_device().c_str());
  const char* const required = std::getenv("TAPESTRY_REQUIRE_CUDA");
  CHECK_FALSE((wanted == 1 && required && std::string_view(required) == "1"));
  return true;
}
