// Convolutions in f32 are compared with the CPU's to 1e-5 and better, and cuDNN rounds their inputs to TF32
// by default. So every test of this program runs without TF32.
#include "tapestry/core/kernel_policy.h"

#include "tests/support/catch.h"

using namespace tapestry;

namespace {

[[maybe_unused]] const bool without = (set_allow_tf32_convolution(false), true);

}  // namespace

TEST_CASE("tests of devices allow no TF32") {
  CHECK_FALSE(allow_tf32_convolution());
  CHECK_FALSE(allow_tf32_matmul());
}
