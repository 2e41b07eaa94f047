#pragma once
// The semantics of the PTX instructions that mma.cuh wraps.
#include "tests/support/cuda_emulator/cuda_emulator.h"

namespace cuda_emulator {

/// d += a b for mma.m16n8k16 with f16 fragments, as multiply_bf16().
void multiply_f16(const LaneCall (&)[32], unsigned, std::size_t);

}  // namespace cuda_emulator

namespace cuda_emulator::ptx {

inline void mma_m16n8k16_f16(float (&d)[4], const std::uint32_t (&a)[4], const std::uint32_t (&b)[2],
                             Location where = Location::current()) {
  MmaOperands operands;
  std::memcpy(operands.d, d, sizeof d);
  std::memcpy(operands.a, a, sizeof a);
  std::memcpy(operands.b, b, sizeof b);
  warp_operation(~0u, &multiply_f16, {&operands, d, 0}, sizeof d, false, where);
}
inline std::uint32_t to_bf16_pair(float low, float high) {
  return to_bf16_bits(low) | std::uint32_t{to_bf16_bits(high)} << 16;
}
inline std::uint32_t to_f16_pair(float low, float high) {
  return to_f16_bits(low) | std::uint32_t{to_f16_bits(high)} << 16;
}

}  // namespace cuda_emulator::ptx
