#pragma once
// The semantics of the PTX instructions that portable.cuh wraps. cuda_emulator.h includes this file.

namespace cuda_emulator {

struct MmaOperands {
  float d[4];
  std::uint32_t a[4], b[2];
};
/// d += a b for mma.m16n8k16 with bf16 fragments. Sums are in f32 in order of k; the order of the hardware is
/// unspecified.
void multiply_bf16(const LaneCall (&)[32], unsigned, std::size_t);
/// The instruction ldmatrix loads 8 x 8 matrices of 16-bit elements. Lane 8 q + r supplies the address of row
/// r of matrix q. `argument` is the number of matrices.
void load_matrices(const LaneCall (&)[32], unsigned, std::size_t);
void load_matrices_transposed(const LaneCall (&)[32], unsigned, std::size_t);

/// Loads N fragments per lane by ldmatrix. `row` is the address of this lane's 16-byte row, if the lane
/// supplies one. The lane itself reads the row, so that sanitizers attribute the access to the kernel.
template <int N>
void load_fragments(std::uint32_t (&r)[N], const void* row, WarpOperation operation, const Location& where) {
  uint4 own{};
  if (current->lane < 8 * N) own = *static_cast<const uint4*>(row);
  warp_operation(~0u, operation, {&own, r, N}, sizeof r, false, where);
}

}  // namespace cuda_emulator

namespace cuda_emulator::ptx {

inline void mma_m16n8k16_bf16(float (&d)[4], const std::uint32_t (&a)[4], const std::uint32_t (&b)[2],
                              Location where = Location::current()) {
  MmaOperands operands;
  std::memcpy(operands.d, d, sizeof d);
  std::memcpy(operands.a, a, sizeof a);
  std::memcpy(operands.b, b, sizeof b);
  warp_operation(~0u, &multiply_bf16, {&operands, d, 0}, sizeof d, false, where);
}
inline void ldmatrix_x4(std::uint32_t (&r)[4], const void* row, Location where = Location::current()) {
  load_fragments(r, row, &load_matrices, where);
}
inline void ldmatrix_x2(std::uint32_t (&r)[2], const void* row, Location where = Location::current()) {
  load_fragments(r, row, &load_matrices, where);
}
inline void ldmatrix_x4_trans(std::uint32_t (&r)[4], const void* row, Location where = Location::current()) {
  load_fragments(r, row, &load_matrices_transposed, where);
}
inline void ldmatrix_x2_trans(std::uint32_t (&r)[2], const void* row, Location where = Location::current()) {
  load_fragments(r, row, &load_matrices_transposed, where);
}
/// The asynchronous copy cp.async. The hardware may write the destination at any time before the wait. So the
/// emulator fills it with NaN (all bits set), and copies at the wait.
inline void cp_async16(void* to, const void* from, bool read, Location where = Location::current()) {
  *static_cast<uint4*>(to) = {~0u, ~0u, ~0u, ~0u};
  begin_copy({to, from, 16, !read}, where);
}
inline void cp_async4(void* to, const void* from, bool read, Location where = Location::current()) {
  *static_cast<std::uint32_t*>(to) = ~0u;
  begin_copy({to, from, 4, !read}, where);
}
inline std::uint16_t to_bf16_bits(float x) { return tapestry::BFloat16(x).bits; }
inline std::uint16_t to_f16_bits(float x) { return tapestry::Half(x).bits; }
inline float from_f16_bits(std::uint16_t bits) { return static_cast<float>(tapestry::Half::from_bits(bits)); }
inline float exp2_approx(float x) {
  const float y = std::exp2(x);
  return y < 0x1p-126f ? 0.0f : y;  // flushes denormal results to zero; a NaN is kept
}
inline void cp_async_commit() { commit_copies(); }
template <int Keep>
void cp_async_wait() {
  AsyncCopy copy;
  while (take_copy(Keep, copy)) {
    if (copy.bytes == 4)
      *static_cast<std::uint32_t*>(copy.to) = copy.zeros ? 0 : *static_cast<const std::uint32_t*>(copy.from);
    else *static_cast<uint4*>(copy.to) = copy.zeros ? uint4{} : *static_cast<const uint4*>(copy.from);
  }
}

}  // namespace cuda_emulator::ptx
