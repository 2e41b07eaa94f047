#pragma once
// Random cases of operations, with the operation's own results in f64 as the reference.
#include <cstdint>
#include <string>

#include "tests/support/op_case.h"

namespace tapestry::test {

struct FuzzResult {
  int cases = 0;  ///< that the operation accepted in f64
  Failures failures;
};

/// Runs up to `count` random cases of the function. A case is a recorded case of `op` with other sizes,
/// values and parameters; if the operation throws an Error for it, another one is drawn. Values and gradients
/// in every dtype and layout must agree with those in f64 within the tolerance of golden cases. The scale of
/// the tolerance is estimated from the changes of the f64 results when the inputs are changed by a relative
/// 1e-7. On a GPU, the cases run as golden cases do there (op_check.h).
FuzzResult fuzz_operation(const std::string& op, const std::string& family, const OpFunction& fn,
                          std::uint64_t seed, int count, Device device = kCPU);
/// Runs fuzz_operation() for every GOLDEN_OP of this program.
FuzzResult fuzz_operations(std::uint64_t seed, int count, Device device = kCPU);

}  // namespace tapestry::test
