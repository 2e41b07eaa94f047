#pragma once
// The choice of instructions of packed_linear_int8, for tests.
#include <optional>

namespace tapestry::kernels::cpu {

enum class Int8Kernel { portable, avx2, vnni };
/// The fastest kernel that this CPU can run.
Int8Kernel best_int8_kernel();
/// Sets the kernel for the following calls, or, without a value, the fastest. No other thread may compute at
/// the same time. All give the same integers; they differ in the rounding of f32.
void set_int8_kernel(std::optional<Int8Kernel> kernel);

}  // namespace tapestry::kernels::cpu
