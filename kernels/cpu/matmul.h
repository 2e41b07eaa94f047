#pragma once
// The CPU's matrix product, for other CPU kernels and for tests.
#include <string>
#include <string_view>

#include "tapestry/kernels/ops/matmul.h"

namespace tapestry::kernels::cpu {

/// One matrix product of type T (float or double) on compute_threads() threads. It ignores the batch, the
/// bias and the epilogue in `g`.
template <class T>
void multiply(const GemmArgs& g);
template <>
void multiply<float>(const GemmArgs& g);
template <>
void multiply<double>(const GemmArgs& g);
/// Computes the same product of f32 if a is one row, or b and c are one column whose elements are adjacent.
/// Otherwise does nothing and returns false.
bool multiply_row(const GemmArgs& g);
/// One matrix product of bf16 operands with f32 sums, by the processor's bf16 instructions, with g's bias and
/// accumulation. C is f32 if `f32_result`, and bf16 otherwise: the sums are then rounded once. Subnormal
/// operands count as 0, as these instructions define. Ignores the batch and the epilogue. Does nothing and
/// returns false if the processor or the build has no such instructions that pay (bf16_dot.h), or if k is odd
/// and the last elements along k are not finite.
bool multiply_bf16(const GemmArgs& g, bool f32_result);
/// The name that oneDNN gives to the kernel of this product; empty if multiply_bf16 computes it without
/// oneDNN or not at all.
std::string bf16_kernel(const GemmArgs& g, bool f32_result);

/// For tests on processors without AMX: takes the kernels of this thread with `part` in their names for AMX
/// kernels of a version with the tile fault (onednn_faults.h). An empty `part` ends this.
void plant_tile_fault(std::string_view part);
/// c += a b for one row a of k numbers and a (k, n) matrix b of f32, f16 or bf16 with these strides. Converts
/// b in parts that stay in the cache.
template <class T>
void add_row_product(const float* a, const T* b, const MatrixStrides& strides, std::int64_t k, float* c,
                     std::int64_t n);
/// Computes the same product by Eigen, even if the build has another library.
template <class T>
void multiply_eigen(const GemmArgs& g);
extern template void multiply_eigen<float>(const GemmArgs&);
extern template void multiply_eigen<double>(const GemmArgs&);

}  // namespace tapestry::kernels::cpu
