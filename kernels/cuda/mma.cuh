#pragma once
// PTX of kernels that multiply f16 beside bf16 on tensor cores. It is not in portable.cuh, because only these
// kernels need it.
#include "tapestry/kernels/cuda/portable.cuh"

namespace tapestry::kernels::cuda::ptx {

/// d += a b in f16, as mma_m16n8k16_bf16().
__device__ __forceinline__ void mma_m16n8k16_f16(float (&d)[4], const std::uint32_t (&a)[4],
                                                 const std::uint32_t (&b)[2]) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
/// Rounds two numbers; `low` goes to the lower half of the word.
__device__ __forceinline__ std::uint32_t to_bf16_pair(float low, float high) {
  std::uint32_t pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}
__device__ __forceinline__ std::uint32_t to_f16_pair(float low, float high) {
  std::uint32_t pair;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}

}  // namespace tapestry::kernels::cuda::ptx

namespace tapestry::kernels::cuda {

/// d += a b for fragments of T, which is Half or BFloat16.
template <class T>
__device__ __forceinline__ void mma_m16n8k16(float (&d)[4], const std::uint32_t (&a)[4],
                                             const std::uint32_t (&b)[2]) {
  if constexpr (std::is_same_v<T, Half>) ptx::mma_m16n8k16_f16(d, a, b);
  else ptx::mma_m16n8k16_bf16(d, a, b);
}
template <class T>
__device__ __forceinline__ std::uint32_t pair_of(float low, float high) {
  if constexpr (std::is_same_v<T, Half>) return ptx::to_f16_pair(low, high);
  else return ptx::to_bf16_pair(low, high);
}

}  // namespace tapestry::kernels::cuda
