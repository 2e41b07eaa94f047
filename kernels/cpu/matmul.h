#pragma once
// The CPU's matrix product, for other CPU kernels and for tests.
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
/// Computes the same product by Eigen, even if the build has another library.
template <class T>
void multiply_eigen(const GemmArgs& g);
extern template void multiply_eigen<float>(const GemmArgs&);
extern template void multiply_eigen<double>(const GemmArgs&);

}  // namespace tapestry::kernels::cpu
