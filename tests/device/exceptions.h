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
constexpr DTypeSet kF32 = tapestry::bit(DType::f32), kBF16 = tapestry::bit(DType::bf16), kBoth = kF32 | kBF16,
                   kI64 = tapestry::bit(DType::i64), kIndices = kI64 | tapestry::bit(DType::i32);
constexpr const char* kNotYet = "not written yet";
constexpr const char* kWithMixedPrecision = "convolutions in bf16 come with mixed precision";

inline constexpr Exception kExceptions[] = {
    {"arange", kBoth, kNotYet},
    {"check_indices", kIndices, kNotYet},
    {"conv2d", kBF16, kWithMixedPrecision},
    {"conv2d_backward_input", kBF16, kWithMixedPrecision},
    {"conv2d_backward_weight", kBF16, kWithMixedPrecision},
    {"div_backward", kBoth, kNotYet},
    {"dropout", kBoth, kNotYet},
    {"embedding", kBoth, kNotYet},
    {"embedding_backward", kBoth, kNotYet},
    {"eq", kBoth, kNotYet},
    {"eq_scalar", kBoth, kNotYet},
    {"ge_scalar", kBoth, kNotYet},
    {"gt_scalar", kBoth, kNotYet},
    {"index_add", kBoth, kNotYet},
    {"index_select", kBoth, kNotYet},
    {"isclose", kBoth, kNotYet},
    {"isnan", kBoth, kNotYet},
    {"le", kBoth, kNotYet},
    {"le_scalar", kBoth, kNotYet},
    {"logsumexp", kBoth, kNotYet},
    {"lt", kBoth, kNotYet},
    {"lt_scalar", kBoth, kNotYet},
    {"masked", kBoth, kNotYet},
    {"max", kBoth, kNotYet},
    {"maximum_backward", kBoth, kNotYet},
    {"min", kBoth, kNotYet},
    {"minimum_backward", kBoth, kNotYet},
    {"ne", kBoth, kNotYet},
    {"ne_scalar", kBoth, kNotYet},
    {"norm", kBoth, kNotYet},
    {"norm_backward", kBoth, kNotYet},
    {"normal", kBoth, kNotYet},
    {"pow_backward_base", kBoth, kNotYet},
    {"pow_backward_exponent", kBoth, kNotYet},
    {"pow_scalar_backward", kBoth, kNotYet},
    {"randint", kBoth, kNotYet},
    {"randperm", kI64, kNotYet},
    {"scatter", kBoth, kNotYet},
    {"sum", kBoth, kNotYet},
    {"uniform", kBoth, kNotYet},
    {"variance", kBoth, kNotYet},
    {"where", kBoth, kNotYet},
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
