// The instances of kernels that kernels_test.cpp launches. Nothing here is linked.
#include "tests/uncontracted/kernels.cuh"

namespace uncontracted {
template __global__ void axpy(int, float, const float*, float*);
template __global__ void axpy(int, double, const double*, double*);
template __global__ void complex_quotients(int, const float*, const float*, float*, float*);
template __global__ void complex_quotients(int, const double*, const double*, double*, double*);
template __global__ void mixed<>(int, const double*, const float*, std::int64_t*);
}  // namespace uncontracted

namespace tapestry::kernels::cuda {
template __global__ void add_elements(std::int64_t, bool, uncontracted::Dot, float*);
template __global__ void add_parts(int, uncontracted::Dot, const float*);
template __global__ void gemm_f32<SmallTileF32, 4, true, false>(GemmPlan<float>);
template __global__ void gemm_f32<SmallTileF32, 1, false, true>(GemmPlan<float>);
template __global__ void layer_norm_rows<float, 32, 8, 4>(LayerNormRows<float>);
template __global__ void layer_norm_streamed<float, 1>(LayerNormRows<float>);
template __global__ void layer_norm_backward_rows<float, 32, 8, 4, 8>(LayerNormGrads<float>);
template __global__ void add_row_parts(const float*, int, int, float*, float*);
template __global__ void row_in_registers<SoftmaxBackward<float, false>, float, 32, 8, 4>(RowInputs<float, 2>,
                                                                                          float*,
                                                                                          std::int64_t, int);
template __global__ void step_chunks<SgdRule<true, true>>(const StepEntry<SgdRule<true, true>>*, const int*);
template __global__ void step_chunks<AdamRule<true>>(const StepEntry<AdamRule<true>>*, const int*);
}  // namespace tapestry::kernels::cuda
