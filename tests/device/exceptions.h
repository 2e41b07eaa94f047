#pragma once
// The kernels that slots_test.cpp requires of CUDA but that CUDA does not have, with the reasons.
#include "tapestry/core/dtype.h"

namespace device_tests {

using tapestry::DType, tapestry::DTypeSet;

struct Exception {
  const char* slot;
  DTypeSet dtypes;
  const char* reason;
};
constexpr DTypeSet kF32 = tapestry::bit(DType::f32), kBF16 = tapestry::bit(DType::bf16), kBoth = kF32 | kBF16;
constexpr const char* kLowered = "autograd/ops/conv_maps.cpp computes volumes by conv2d's kernels";

constexpr const char* kLinalg = "autograd/ops/linalg.h says that CUDA tensors are computed on the host";

constexpr const char* kReadsAsIs = "kernels/ops/matmul_packed.h says that GPUs read the factor as it is";

constexpr const char* kPacked = "autograd/ops/packed_linear.h says that packed weights are on the CPU";

constexpr const char* kLastOfCumprod =
    "on GPUs autograd/ops/reduce_composed.cpp takes the last elements of cumprod";

inline constexpr Exception kExceptions[] = {
    {"conv3d", kF32, kLowered},
    {"conv3d_backward_input", kF32, kLowered},
    {"conv3d_backward_weight", kF32, kLowered},
    {"interleave", tapestry::bit(DType::u8), kPacked},
    {"pack_matrix", kBoth, kReadsAsIs},
    {"packed_gemm", kBoth, kReadsAsIs},
    {"packed_linear", kF32, kPacked},
    {"packed_linear_backward", kF32, kPacked},
    {"packed_linear_int8", kF32, kPacked},
    {"prod", kF32, kLastOfCumprod},
    {"linalg.solve", kF32, kLinalg},
    {"linalg.det", kF32, kLinalg},
    {"linalg.solve_triangular", kF32, kLinalg},
    {"linalg.cholesky", kF32, kLinalg},
    {"linalg.qr", kF32, kLinalg},
    {"linalg.svd", kF32, kLinalg},
    {"linalg.eigh", kF32, kLinalg},
};

/// The dtypes that CUDA needs for a kernel: f32 and bf16 if the CPU has them, or all dtypes of the CPU if
/// none of them is floating point.
constexpr DTypeSet required_of_cuda(DTypeSet cpu) {
  const DTypeSet floats = cpu & tapestry::kFloats;
  return floats ? floats & kBoth : cpu;
}

/// Operations without golden cases, which the tests machine.op_* therefore do not run, and the tests that run
/// them on a CUDA device.
struct Elsewhere {
  const char* op;
  const char* test;
};
constexpr const char* kRandomTest = "tests/device/sizes_test.cpp compares it with the CPU";
inline constexpr Elsewhere kElsewhere[] = {
    {"bernoulli", "made of rand and a comparison; tests/device/sizes_test.cpp runs the kernel of rand"},
    {"dropout", kRandomTest},
    {"grouped_mm", "tests/device/variants_test.cpp compares it with the CPU"},
    {"multinomial", "tests/device/sampling_test.cpp compares it with the CPU"},
    {"rand", kRandomTest},
    {"randint", kRandomTest},
    {"randn", kRandomTest},
    {"randperm", kRandomTest},
};

}  // namespace device_tests
