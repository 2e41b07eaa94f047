#include "tests/support/cuda_emulator/cuda_emulator.h"
#include "tests/support/cuda_emulator/cuda_emulator_mma.h"

namespace cuda_emulator {
namespace {

float bf16_element(std::uint32_t pair, int half) {
  return std::bit_cast<float>(half ? pair & 0xffff0000u : pair << 16);
}
float f16_element(std::uint32_t pair, int half) {
  return ptx::from_f16_bits(static_cast<std::uint16_t>(half ? pair >> 16 : pair));
}
const char* row_of(const LaneCall& lane) { return static_cast<const char*>(lane.in); }
char* result_of(const LaneCall& lane) { return static_cast<char*>(lane.out); }

// The fragment layout of mma.m16n8k16 (PTX ISA). Lane l belongs to group g = l / 4 and has position t = l % 4
// in it. Each register holds a pair of 16-bit elements. For the matrix a (16 x 16), the registers hold
// columns 2t and 2t + 1 of row g, the same columns of row g + 8, and then both rows again 8 columns further.
// For b (16 x 8), they hold rows 2t and 2t + 1 of column g, and then the rows 8 further. For d (16 x 8), they
// hold columns 2t and 2t + 1 of row g, and then of row g + 8.
template <class F>
void multiply(const LaneCall (&lanes)[32], F element) {
  float a[16][16], b[16][8];
  for (int lane = 0; lane < 32; ++lane) {
    const auto& own = *static_cast<const MmaOperands*>(lanes[lane].in);
    const int g = lane / 4, t = lane % 4;
    for (int half = 0; half < 2; ++half) {
      for (int i = 0; i < 4; ++i) a[g + 8 * (i % 2)][2 * t + half + 8 * (i / 2)] = element(own.a[i], half);
      for (int i = 0; i < 2; ++i) b[2 * t + half + 8 * i][g] = element(own.b[i], half);
    }
  }
  for (int lane = 0; lane < 32; ++lane) {
    const auto& own = *static_cast<const MmaOperands*>(lanes[lane].in);
    float* const d = static_cast<float*>(lanes[lane].out);
    for (int i = 0; i < 4; ++i) {
      const int row = lane / 4 + 8 * (i / 2), column = 2 * (lane % 4) + i % 2;
      float sum = own.d[i];
      for (int k = 0; k < 16; ++k) sum += a[row][k] * b[k][column];
      d[i] = sum;
    }
  }
}

}  // namespace

void multiply_bf16(const LaneCall (&lanes)[32], unsigned, std::size_t) { multiply(lanes, bf16_element); }
void multiply_f16(const LaneCall (&lanes)[32], unsigned, std::size_t) { multiply(lanes, f16_element); }

void load_matrices(const LaneCall (&lanes)[32], unsigned, std::size_t) {
  for (int lane = 0; lane < 32; ++lane)
    for (int q = 0; q < lanes[lane].argument; ++q)
      std::memcpy(result_of(lanes[lane]) + 4 * q, row_of(lanes[8 * q + lane / 4]) + 4 * (lane % 4), 4);
}

void load_matrices_transposed(const LaneCall (&lanes)[32], unsigned, std::size_t) {
  for (int lane = 0; lane < 32; ++lane)
    for (int q = 0; q < lanes[lane].argument; ++q)
      for (int half = 0; half < 2; ++half)
        std::memcpy(result_of(lanes[lane]) + 4 * q + 2 * half,
                    row_of(lanes[8 * q + 2 * (lane % 4) + half]) + 2 * (lane / 4), 2);
}

}  // namespace cuda_emulator
