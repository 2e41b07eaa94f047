#pragma once
// The one list of kernels that the CPU has and CUDA has not, with the reasons.
#include <cstring>
#include <string_view>

#include "tapestry/core/dtype.h"
#include "tapestry/core/error.h"

namespace device_tests {

using tapestry::DType, tapestry::DTypeSet;

struct Exception {
  const char* slot;
  DTypeSet dtypes;
  const char* reason;
};
constexpr DTypeSet kF32 = tapestry::bit(DType::f32), kBF16 = tapestry::bit(DType::bf16), kBoth = kF32 | kBF16;
constexpr const char* kNotYet = "not written yet";
constexpr const char* kWithMixedPrecision = "convolutions in bf16 come with mixed precision";

inline constexpr Exception kExceptions[] = {
    {"conv2d", kBF16, kWithMixedPrecision},
    {"conv2d_backward_input", kBF16, kWithMixedPrecision},
    {"conv2d_backward_weight", kBF16, kWithMixedPrecision},
};

/// Whether the error is that of a kernel which is not written yet: what needs it cannot be tested.
inline bool not_written_yet(std::string_view error) {
  for (const Exception& e : kExceptions)
    if (std::strcmp(e.reason, kNotYet) == 0 &&
        error.find(tapestry::concat({"[", e.slot, "] there is no cuda"})) == 0)
      return true;
  return false;
}

}  // namespace device_tests
