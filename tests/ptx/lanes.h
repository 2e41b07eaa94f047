#pragma once
// The instructions that kernels/cuda/portable.cuh wraps, one warp a case: each lane gives some words and gets
// some.
#include <cstdint>
#include <vector>

namespace ptx_test {

using Words = std::vector<std::uint32_t>;

enum class Instruction {
  mma,          // a[4], b[2], d[4] -> d[4]
  ldmatrix_x4,  // the lane's row of shared memory [4], the row whose address it gives -> r[4]
  ldmatrix_x2,  //   as above -> r[2]
  ldmatrix_x4_trans,
  ldmatrix_x2_trans,
  cp_async,   // two sources [4], whether each is read, 3 unused -> the first when one group may be left, the
              // second
  cp_async4,  // a source, whether it is read -> what arrives
  to_bf16,    // a float -> its bits
  to_f16,
  from_f16,    // bits -> a float
  power_of_2,  // a float -> 2 to that power, about
};

/// Words that a lane gives and gets.
constexpr int words_in(Instruction i) {
  using enum Instruction;
  return i == mma ? 10 : i == cp_async ? 12 : i == cp_async4 ? 2 : i >= to_bf16 ? 1 : 5;
}
constexpr int words_out(Instruction i) {
  using enum Instruction;
  return i == mma || i == ldmatrix_x4 || i == ldmatrix_x4_trans ? 4
         : i == cp_async                                        ? 8
         : i == cp_async4 || i >= to_bf16                       ? 1
                                                                : 2;
}

/// Lane after lane, case after case; compiled from one source, lanes.cuh, for the emulator and for a GPU.
Words emulate(Instruction instruction, const Words& in);
Words run_on_gpu(Instruction instruction, const Words& in);

}  // namespace ptx_test
