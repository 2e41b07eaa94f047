#pragma once
// Matrix products: the choice among the kernels of gemm_f32.cuh, gemm_bf16.cuh and gemv.cuh.
#include "tapestry/kernels/cuda/gemm_bf16.cuh"
#include "tapestry/kernels/cuda/gemm_f32.cuh"
#include "tapestry/kernels/cuda/gemv.cuh"

namespace tapestry::kernels::cuda {

template <class T>
GemmWay gemm_way(const Gemm& g) {
  if (is_gemv<T>(g)) return {.few_rows = true};
  if constexpr (std::is_same_v<T, float>) return fastest_way<LargeTileF32, SmallTileF32>(g);
  // What is not aligned goes through small tiles: reading it takes the time, not multiplying.
  else if (!gemm_layout<T>(g).packs) return fastest_way<SmallTileBf16, SmallTileBf16>(g);
  else return fastest_way<LargeTileBf16, SmallTileBf16>(g);
}

/// T is float or BFloat16. In bf16 the large tiles need aligned packs. Few rows are those of is_gemv().
template <class T>
void launch_gemm(const Gemm& g, const GemmWay& way, cudaStream_t stream) {
  if (g.m * g.n * batch_count(g) == 0) return;
  const GemmLayout layout = gemm_layout<T>(g);
  if (way.few_rows) return launch_gemv<T>(g, layout, stream);
  if constexpr (std::is_same_v<T, float>) {
    if (way.large) launch_gemm_f32<LargeTileF32>(g, layout, way.splits, stream);
    else launch_gemm_f32<SmallTileF32>(g, layout, way.splits, stream);
  } else {
    if (way.large) launch_gemm_bf16<LargeTileBf16, false>(g, layout, way.splits, stream);
    else launch_gemm_bf16<SmallTileBf16, true>(g, layout, way.splits, stream);
  }
}
template <class T>
void launch_gemm(const Gemm& g, cudaStream_t stream) {
  launch_gemm<T>(g, gemm_way<T>(g), stream);
}

}  // namespace tapestry::kernels::cuda
