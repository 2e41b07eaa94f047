#pragma once
// Matrix products: chooses among the kernels of matmul_f32.cuh, matmul_bf16.cuh, matmul_ragged.cuh and
// matmul_gemv.cuh.
#include "tapestry/kernels/cuda/matmul_f32.cuh"
#include "tapestry/kernels/cuda/matmul_gemv.cuh"
#include "tapestry/kernels/cuda/matmul_ragged.cuh"

namespace tapestry::kernels::cuda {

template <class T>
GemmStrategy gemm_strategy(const GemmArgs& g) {
  if (is_gemv<T>(g)) return {.gemv = true};
  if constexpr (std::is_same_v<T, float>) return fastest_strategy<LargeTileF32, SmallTileF32>(g);
  else if (gemm_layout<T>(g).packs) return fastest_strategy<LargeTileBf16, SmallTileBf16>(g);
  else return fastest_strategy<RaggedLargeTile, RaggedSmallTile>(g);
}

/// Computes the product by the given strategy. T is float, BFloat16 or Half. A gemv strategy requires
/// is_gemv().
template <class T>
void launch_gemm(const LaunchContext& context, const GemmArgs& g, const GemmStrategy& strategy) {
  if (g.m * g.n * batch_count(g) == 0) return;
  const GemmLayout layout = gemm_layout<T>(g);
  if (strategy.gemv) return launch_gemv<T>(g, layout, stream_of(context));
  if constexpr (std::is_same_v<T, float>) {
    if (strategy.large) launch_gemm_f32<LargeTileF32>(g, layout, strategy.splits, context);
    else launch_gemm_f32<SmallTileF32>(g, layout, strategy.splits, context);
  } else if (layout.packs) {
    if (strategy.large) launch_gemm_16_bit<LargeTileBf16, T>(g, layout, strategy.splits, context);
    else launch_gemm_16_bit<SmallTileBf16, T>(g, layout, strategy.splits, context);
  } else {
    if (strategy.large) launch_gemm_ragged<RaggedLargeTile, T>(g, layout, strategy.splits, context);
    else launch_gemm_ragged<RaggedSmallTile, T>(g, layout, strategy.splits, context);
  }
}
template <class T>
void launch_gemm(const LaunchContext& context, const GemmArgs& g) {
  launch_gemm<T>(context, g, gemm_strategy<T>(g));
}

}  // namespace tapestry::kernels::cuda
