#pragma once
// Runs the PTX instructions that kernels/cuda/portable.cuh wraps. Each case is one warp. Each lane has some
// 32-bit words of input and some of output.
#include <cstdint>
#include <vector>

namespace ptx_test {

using Words = std::vector<std::uint32_t>;

/// The comments give the words of one lane: input -> output.
enum class Instruction {
  mma,          // a[4], b[2], d[4] -> d[4]
  mma_f16,      // the same in f16
  ldmatrix_x4,  // a row [4] to put into shared memory, the index of the row to address -> r[4]
  ldmatrix_x2,  // input as for ldmatrix_x4 -> r[2]
  ldmatrix_x4_trans,
  ldmatrix_x2_trans,
  // Input: two sources [4] each, a bit per source that says if it is read, and 3 unused words. Output: the
  // copy of the first source [4], read after cp_async_wait<1>(), and the copy of the second [4].
  cp_async,
  cp_async4,  // a source, whether it is read -> the copied word
  bf16_pair,  // two floats -> their bits in one word
  f16_pair,
  to_bf16,  // a float -> its bits
  to_f16,
  from_f16,    // bits -> a float
  power_of_2,  // a float -> an approximation of 2 to that power
};

/// The number of input and output words per lane.
constexpr int words_in(Instruction i) {
  using enum Instruction;
  return i == mma || i == mma_f16 ? 10 : i == cp_async ? 12 : i >= to_bf16 ? 1 : i >= cp_async4 ? 2 : 5;
}
constexpr int words_out(Instruction i) {
  using enum Instruction;
  return i == mma || i == mma_f16 || i == ldmatrix_x4 || i == ldmatrix_x4_trans ? 4
         : i == cp_async                                                        ? 8
         : i >= cp_async4                                                       ? 1
                                                                                : 2;
}

/// Words are ordered by case, then by lane.
Words run_on_gpu(Instruction instruction, const Words& in);

}  // namespace ptx_test
