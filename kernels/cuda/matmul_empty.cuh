#pragma once
// Products with k = 0 in f64, which cuBLASLt refuses: C = bias, or C += bias. The kernels of the other dtypes
// compute them without a special case.
#include "tapestry/kernels/cuda/matmul_plan.cuh"

namespace tapestry::kernels::cuda {

inline constexpr int kEmptyThreads = 256;

/// A thread computes one element of C.
template <class T>
__global__ void __launch_bounds__(kEmptyThreads) gemm_empty(GemmPlan<T> p) {
  const std::int64_t index = static_cast<std::int64_t>(blockIdx.x) * kEmptyThreads + threadIdx.x;
  if (index >= p.batch * p.m * p.n) return;
  const std::int64_t row = index / p.n, column = index - row * p.n, matrix = row / p.m;
  T* const c =
      p.c + (batch_offsets(p, static_cast<unsigned>(matrix)).c + (row - matrix * p.m) * p.c_row + column);
  const T old = p.accumulate ? *c : T(0);
  *c = p.bias ? old + p.bias[column] : old;
}

/// Computes a product with k = 0 and without an epilogue.
template <class T>
void launch_gemm_empty(const LaunchContext& context, const GemmArgs& g) {
  const std::int64_t count = g.m * g.n * batch_count(g), blocks = ceil_div(count, kEmptyThreads);
  if (count == 0 || (g.accumulate && !g.bias)) return;
  check(blocks <= 0x7fffffff, "[matmul] ", batch_count(g), " matrices of (", g.m, ", ", g.n,
        ") are too many for a launch; multiply fewer at once");
  GemmPlan<T> p{.m = g.m, .n = g.n, .k = 0};
  p.c = g.c.as<T>();
  p.bias = g.bias.as<T>();
  p.c_row = g.c_row;
  p.accumulate = g.accumulate;
  p.batch = static_cast<unsigned>(batch_count(g));
  p.batch_ndim = g.batch_ndim;
  for (int d = 0; d < g.batch_ndim; ++d) {
    p.batch_sizes[d] = static_cast<unsigned>(g.batch_sizes[d]);
    p.c_batch[d] = g.c_batch[d];
  }
  launch(&gemm_empty<T>, static_cast<unsigned>(blocks), kEmptyThreads, 0, stream_of(context), p);
}

}  // namespace tapestry::kernels::cuda
