#pragma once
// C = A B for up to 16 rows of A (4 in bf16), where A and B are both contiguous along k with aligned packs.
// This is the forward pass of a linear layer with a small batch. Its time is that of reading B once. A tiled
// GEMM would be slower, because most rows of its tiles would be empty. A block computes four columns of C.
// Its threads stride along k with 16-byte loads of the four columns of B and of the rows of A. The rows of A
// stay in cache.
#include "tapestry/kernels/cuda/matmul_plan.cuh"

namespace tapestry::kernels::cuda {

/// The largest number of rows for which the FMAs keep up with memory. Per clock, an SM of an H100 receives
/// about 5 f32 or 10 bf16 elements and computes 128 products; each element of B is multiplied by every row.
/// For 16 rows of bf16, tensor cores are needed.
template <class T>
inline constexpr int kGemvRows = std::is_same_v<T, float> ? 16 : 4;
inline constexpr int kGemvColumns = 4, kGemvWarps = 8;

/// Sums v[i] over the warp by halving: in each step a lane gives half of its values to its partner.
/// Afterwards a lane has N / 32 sums, or 32 / N adjacent lanes have the same sum. Returns the index of the
/// lane's first sum.
template <int N, int kLanes = 16>
__device__ __forceinline__ int fold_warp(float* v) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  int first = 0;
  if constexpr (N > 1) {
    const bool upper = lane & kLanes;
#pragma unroll
    for (int i = 0; i < N / 2; ++i) {
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

/// The number of blocks of 256 threads per SM, which follows from the registers per thread. For 16 rows a
/// thread needs 128 registers, among others for its 64 sums, so two blocks fit. For up to 4 rows it needs 80
/// for its 16 sums and the bf16 packs as floats, so three blocks fit.
constexpr int gemv_blocks(int rows) { return rows > 4 ? 2 : rows > 1 ? 3 : 4; }

template <class T, int kRows>
__global__ void __launch_bounds__(32 * kGemvWarps, gemv_blocks(kRows)) gemv(GemmPlan<T> p) {
  constexpr int V = 16 / sizeof(T), kSums = kRows * kGemvColumns;
  __shared__ float parts[kGemvWarps][kSums];
  const int thread = static_cast<int>(threadIdx.x), warps = static_cast<int>(blockDim.x) / 32;
  const std::int64_t column = static_cast<std::int64_t>(blockIdx.x) * kGemvColumns;
  const int rows = static_cast<int>(p.m), columns = static_cast<int>(std::min<std::int64_t>(p.n - column, 4));
  const auto read = [](const T* from, bool has, float(&x)[V]) {
    Pack<T, V> pack{};
    if (has) pack = *reinterpret_cast<const Pack<T, V>*>(from);
#pragma unroll
    for (int j = 0; j < V; ++j) x[j] = load(pack.v[j]);
  };
  float sums[kSums] = {};  // column-major
  for (std::int64_t k = thread * V; k < p.k; k += static_cast<std::int64_t>(blockDim.x) * V) {
    float b[kGemvColumns][V];
#pragma unroll
    for (int c = 0; c < kGemvColumns; ++c) read(p.b + (column + c) * p.b_pitch + k, c < columns, b[c]);
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      float a[V];
      read(p.a + r * p.a_pitch + k, r < rows, a);
#pragma unroll
      for (int c = 0; c < kGemvColumns; ++c)
#pragma unroll
        for (int j = 0; j < V; ++j) sums[c * kRows + r] += a[j] * b[c][j];
    }
  }
  const int first = fold_warp<kSums>(sums);
  if (thread % std::max(32 / kSums, 1) == 0)
#pragma unroll
    for (int i = 0; i < std::max(kSums / 32, 1); ++i) parts[thread / 32][first + i] = sums[i];
  __syncthreads();
  if (thread >= rows) return;
  Quad total[1];
#pragma unroll
  for (int c = 0; c < kGemvColumns; ++c) {
    float sum = 0;
    for (int warp = 0; warp < warps; ++warp) sum += parts[warp][c * kRows + thread];
    total[0].v[c] = sum;
  }
  const bool has[1] = {true};
  const std::int64_t at[1] = {thread * p.c_row};
  QuadColumn<T>(p, column).template finish<1, true>(has, at, total);
}

/// Whether the gemv kernel applies. Like gemm_strategy(), this depends only on the product and its alignment.
template <class T>
bool is_gemv(const GemmArgs& g) {
  const GemmLayout layout = gemm_layout<T>(g);
  return g.m <= kGemvRows<T> && !g.row_sums && layout.a_along_k && layout.b_along_k && layout.packs &&
         batch_count(g) == 1;
}

template <class T>
void launch_gemv(const GemmArgs& g, const GemmLayout& layout, cudaStream_t stream) {
  const GemmPlan<T> plan = gemm_plan<SmallTileF32, T>(g, layout, 1);
  // The number of warps is the largest that leaves each thread at least two packs of a column, and at most
  // kGemvWarps.
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
