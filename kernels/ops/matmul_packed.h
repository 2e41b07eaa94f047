#pragma once
// Contracts of matrix products that share their second factor b, as the steps of a recurrent layer share
// W_hh. b is copied once to the layout in which the kernel reads it; gemm copies it in every product. Only
// CPUs have these kernels: GPUs read b as it is.
//   Dtypes: f32, bf16. Accumulation: f32; results are rounded once. Subnormal operands of bf16 may count as 0.
#include "tapestry/kernels/ops/matmul.h"

namespace tapestry::kernels {

/// The packed b consists of panels of so many columns, and the last one is filled up with zeros. The layout
/// of a panel is the kernel's own.
inline constexpr std::int64_t kPanelColumns = 32;

/// The number of f32 elements in which a packed (k, n) matrix of any dtype fits.
constexpr std::int64_t packed_size(std::int64_t k, std::int64_t n) {
  return (n + kPanelColumns - 1) / kPanelColumns * kPanelColumns * k;
}

/// Copies the (k, n) matrix b to `packed`, an f32 array of packed_size(k, n) elements.
struct PackArgs {
  std::int64_t k, n;
  ConstArray b;
  MatrixStrides b_strides;
  MutableArray packed;
};
inline constinit Slot<PackArgs> pack_matrix{"pack_matrix"};

/// Computes c = a b + bias, or c += a b + bias, for an (m, k) matrix a, a packed (k, n) matrix b and an (m,
/// n) matrix c. The rows of a and c are contiguous and begin a_row and c_row elements apart. `bias` has n
/// elements and may be null. c overlaps no other operand.
struct PackedGemmArgs {
  std::int64_t m, n, k;
  ConstArray a;
  std::int64_t a_row;
  ConstArray packed;
  MutableArray c;
  std::int64_t c_row;
  ConstArray bias;
  bool accumulate;
};
inline constinit Slot<PackedGemmArgs> packed_gemm{"packed_gemm"};

}  // namespace tapestry::kernels
