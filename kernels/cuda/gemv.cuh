#pragma once
// C = A B for up to 16 rows of A (4 of bf16), where A and B both lie along k in aligned packs: a linear
// layer's forward with a small batch. A tile's products would nearly all be wasted; the time goes into
// reading B, once. A block has four columns of C, its threads go along k with packs of all four and of the
// rows of A, which come from a cache.
#include "tapestry/kernels/cuda/gemm_plan.cuh"

namespace tapestry::kernels::cuda {

/// An element of B is multiplied by every row of A while the next ones are read. Memory gives a
/// multiprocessor of Hopper's about 5 of f32 in a clock, or 10 of bf16, and it has 128 products in that time:
/// 16 rows of bf16 are for tensor cores.
template <class T>
inline constexpr int kGemvRows = std::is_same_v<T, float> ? 16 : 4;
inline constexpr int kGemvColumns = 4, kGemvWarps = 8;

/// v[i] summed over the warp: half of the lanes keep one half of v each time, so that a lane ends up with N /
/// 32 sums, or 32 / N neighbours with the same one. Returns the number of the lane's first.
template <int N, int kLanes = 16>
__device__ __forceinline__ int fold_warp(float* v) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  int first = 0;
  if constexpr (N > 1) {
    const bool upper = lane & kLanes;
    UNROLL for (int i = 0; i < N / 2; ++i) {
      const float keep = upper ? v[i + N / 2] : v[i], give = upper ? v[i] : v[i + N / 2];
      v[i] = keep + __shfl_xor_sync(kAllLanes, give, kLanes);
    }
    if (upper) first = N / 2;
  } else {
    v[0] += __shfl_xor_sync(kAllLanes, v[0], kLanes);
  }
  if constexpr (kLanes > 1) first += fold_warp<(N > 1 ? N / 2 : 1), kLanes / 2>(v);
  return first;
}

/// 64 sums of 16 rows, and packs of A and B, take 128 registers: two blocks of 256 threads on an SM. 16 sums
/// of 4 rows and packs of bf16 as floats take 80.
constexpr int gemv_blocks(int rows) { return rows > 4 ? 2 : rows > 1 ? 3 : 4; }

template <class T, int kRows>
__global__ void __launch_bounds__(32 * kGemvWarps, gemv_blocks(kRows)) gemv(GemmPlan<T> p) {
  constexpr int V = 16 / sizeof(T), kSums = kRows * kGemvColumns;
  SHARED(float, parts, [kGemvWarps][kSums]);
  const int thread = static_cast<int>(threadIdx.x), warps = static_cast<int>(blockDim.x) / 32;
  const std::int64_t column = static_cast<std::int64_t>(blockIdx.x) * kGemvColumns;
  const int rows = static_cast<int>(p.m), columns = static_cast<int>(std::min<std::int64_t>(p.n - column, 4));
  const auto read = [](const T* from, bool has, float(&x)[V]) {
    Pack<T, V> pack{};
    if (has) pack = *reinterpret_cast<const Pack<T, V>*>(from);
    UNROLL for (int j = 0; j < V; ++j) x[j] = load(pack.v[j]);
  };
  float sums[kSums] = {};  // column by column
  for (std::int64_t k = thread * V; k < p.k; k += static_cast<std::int64_t>(blockDim.x) * V) {
    float b[kGemvColumns][V];
    UNROLL for (int c = 0; c < kGemvColumns; ++c) read(p.b + (column + c) * p.b_pitch + k, c < columns, b[c]);
    UNROLL for (int r = 0; r < kRows; ++r) {
      float a[V];
      read(p.a + r * p.a_pitch + k, r < rows, a);
      UNROLL for (int c = 0; c < kGemvColumns; ++c) UNROLL for (int j = 0; j < V; ++j) sums[c * kRows + r] +=
          a[j] * b[c][j];
    }
  }
  const int first = fold_warp<kSums>(sums);
  if (thread % std::max(32 / kSums, 1) == 0)
    UNROLL for (int i = 0; i < std::max(kSums / 32, 1); ++i) parts[thread / 32][first + i] = sums[i];
  __syncthreads();
  if (thread >= rows) return;
  Quad total[1];
  UNROLL for (int c = 0; c < kGemvColumns; ++c) {
    float sum = 0;
    for (int warp = 0; warp < warps; ++warp) sum += parts[warp][c * kRows + thread];
    total[0].v[c] = sum;
  }
  const bool has[1] = {true};
  const std::int64_t at[1] = {thread * p.c_row};
  QuadColumn<T>(p, column).template finish<1, true>(has, at, total);
}

/// Whether gemv() can take it. It depends on the product and its alignment alone, as gemm_way().
template <class T>
bool is_gemv(const Gemm& g) {
  const GemmLayout layout = gemm_layout<T>(g);
  return g.m <= kGemvRows<T> && layout.a_along_k && layout.b_along_k && layout.packs && batch_count(g) == 1;
}

template <class T>
void launch_gemv(const Gemm& g, const GemmLayout& layout, cudaStream_t stream) {
  const GemmPlan<T> plan = gemm_plan<SmallTileF32, T>(g, layout, 1);
  // Each thread has two packs of a column or more, if that takes no more warps than there are.
  constexpr std::int64_t kPacks = 2 * 32 * (16 / sizeof(T));
  const auto warps = static_cast<unsigned>(std::clamp<std::int64_t>(ceil_div(g.k, kPacks), 1, kGemvWarps));
  const auto go = [&](auto kernel) {
    launch(kernel, static_cast<unsigned>(ceil_div(g.n, kGemvColumns)), 32 * warps, 0, stream, plan);
  };
  if (g.m == 1) go(&gemv<T, 1>);
  else if (g.m <= 4) go(&gemv<T, 4>);
  else if constexpr (kGemvRows<T> > 4) go(&gemv<T, kGemvRows<T>>);
}

}  // namespace tapestry::kernels::cuda
