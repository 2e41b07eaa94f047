// Compares the PTX instructions that portable.cuh and mma.cuh wrap with the PTX ISA's description, lane by
// lane: on a GPU, and on the PTX machine.
#include <bit>
#include <cmath>
#include <limits>
#include <random>

#include "tapestry/core/half.h"
#include "tests/ptx/lanes.h"
#include "tests/support/gpu.h"

using namespace ptx_test;
using enum Instruction;

namespace {

constexpr int kCases = 64;

std::mt19937& generator() {
  static std::mt19937 g(7);
  return g;
}
std::uint32_t below(std::uint32_t n) { return generator()() % n; }

/// A random whole number from -limit to limit. Sums of products of such numbers are exact in any order.
float whole(int limit) {
  return static_cast<float>(below(2u * static_cast<unsigned>(limit) + 1)) - static_cast<float>(limit);
}
template <class T>
std::uint32_t packed(float low, float high) {
  return T(low).bits | std::uint32_t{T(high).bits} << 16;
}

/// Makes the input for kCases warps. f(lane, words) fills in the words of each lane.
template <class F>
Words warps(Instruction instruction, F f) {
  const int n = words_in(instruction);
  Words words(static_cast<std::size_t>(kCases * 32 * n));
  for (int i = 0; i < kCases * 32; ++i) f(i % 32, words.data() + i * n);
  return words;
}

Words shared_rows(Instruction instruction) {
  return warps(instruction, [](int lane, std::uint32_t* w) {
    for (int i = 0; i < 4; ++i) w[i] = generator()();
    w[4] = static_cast<std::uint32_t>(lane) ^
           below(32);  // several lanes may address the same row; some lanes' addresses are ignored
  });
}

/// T is BFloat16 or Half.
template <class T>
void check_mma(Instruction instruction) {
  const Words in = warps(instruction, [](int, std::uint32_t* w) {
    for (int i = 0; i < 6; ++i) w[i] = packed<T>(whole(60), whole(60));
    for (int i = 6; i < 10; ++i) w[i] = std::bit_cast<std::uint32_t>(whole(1000));
  });
  // Computes the expected product from the layout that the PTX ISA defines: of the matrix d, lane l holds
  // rows l / 4 and l / 4 + 8, and columns 2 (l % 4) and 2 (l % 4) + 1. The layouts of a and b are similar.
  const Words d = run_on_gpu(instruction, in);
  const auto half_of = [](std::uint32_t pair, int half) {
    return static_cast<float>(T::from_bits(static_cast<std::uint16_t>(pair >> 16 * half)));
  };
  for (int row = 0; row < 16; ++row)
    for (int column = 0; column < 8; ++column) {
      const int lane = row % 8 * 4 + column / 2, word = row / 8 * 2 + column % 2;
      float sum = std::bit_cast<float>(in[static_cast<std::size_t>(lane * 10 + 6 + word)]);
      for (int k = 0; k < 16; ++k) {
        const int of_a = row % 8 * 4 + k % 8 / 2, of_b = column * 4 + k % 8 / 2;
        sum += half_of(in[static_cast<std::size_t>(of_a * 10 + row / 8 + k / 8 * 2)], k % 2) *
               half_of(in[static_cast<std::size_t>(of_b * 10 + 4 + k / 8)], k % 2);
      }
      CHECK(std::bit_cast<float>(d[static_cast<std::size_t>(lane * 4 + word)]) == sum);
    }
}

}  // namespace

TEST_CASE("mma multiplies the fragments that lanes hold") {
  if (no_gpu()) return;
  check_mma<tapestry::BFloat16>(mma);
  check_mma<tapestry::Half>(mma_f16);
}

TEST_CASE("ldmatrix deals out rows of shared memory") {
  if (no_gpu()) return;
  for (const Instruction instruction : {ldmatrix_x4, ldmatrix_x2, ldmatrix_x4_trans, ldmatrix_x2_trans}) {
    CAPTURE(static_cast<int>(instruction));
    const Words in = shared_rows(instruction);
    const bool trans = instruction == ldmatrix_x4_trans || instruction == ldmatrix_x2_trans;
    const Words out = run_on_gpu(instruction, in);
    const auto half = [&](std::uint32_t row, int i) {
      const std::uint32_t pair = in[in[row * 5 + 4] * 5 + static_cast<std::uint32_t>(i / 2)];
      return pair >> 16 * (i % 2) & 0xffff;
    };
    const int n = words_out(instruction);
    for (int lane = 0; lane < 32; ++lane)
      for (int q = 0; q < n; ++q) {
        const auto first = static_cast<std::uint32_t>(8 * q), r = static_cast<std::uint32_t>(lane / 4),
                   c = static_cast<std::uint32_t>(lane % 4) * 2;
        const std::uint32_t low = trans ? half(first + c, lane / 4) : half(first + r, static_cast<int>(c));
        const std::uint32_t high =
            trans ? half(first + c + 1, lane / 4) : half(first + r, static_cast<int>(c) + 1);
        CHECK(out[static_cast<std::size_t>(lane * n + q)] == (low | high << 16));
      }
  }
}

TEST_CASE("cp.async copies, or writes zeros") {
  if (no_gpu()) return;
  const Words in = warps(cp_async, [](int, std::uint32_t* w) {
    for (int i = 0; i < 8; ++i) w[i] = generator()() | 1;
    w[8] = below(4);
  });
  const Words out = run_on_gpu(cp_async, in);
  for (std::size_t lane = 0; lane < out.size() / 8; ++lane)
    for (std::size_t i = 0; i < 8; ++i)
      CHECK(out[lane * 8 + i] == ((in[lane * 12 + 8] >> i / 4 & 1) != 0 ? in[lane * 12 + i] : 0));
}

TEST_CASE("cp.async of 4 bytes copies, or writes zeros") {
  if (no_gpu()) return;
  const Words in = warps(cp_async4, [](int, std::uint32_t* w) {
    w[0] = generator()() | 1;
    w[1] = below(2);
  });
  const Words out = run_on_gpu(cp_async4, in);
  for (std::size_t lane = 0; lane < out.size(); ++lane)
    CHECK(out[lane] == (in[lane * 2 + 1] != 0 ? in[lane * 2] : 0));
}

TEST_CASE("conversions round to nearest, ties to even") {
  if (no_gpu()) return;
  Words halves(1 << 16);
  for (std::size_t i = 0; i < halves.size(); ++i) halves[i] = static_cast<std::uint32_t>(i);
  const Words widened = run_on_gpu(from_f16, halves);
  for (std::size_t i = 0; i < halves.size(); ++i) {
    const auto want = static_cast<float>(tapestry::Half::from_bits(static_cast<std::uint16_t>(i)));
    const auto got = std::bit_cast<float>(widened[i]);
    if (got != want && !(std::isnan(got) && std::isnan(want))) CHECK(got == want);
  }

  for (const Instruction instruction : {to_bf16, to_f16}) {
    CAPTURE(static_cast<int>(instruction));
    // The inputs are random representable results and their neighbours, the midpoints to the next result and
    // their neighbours, and arbitrary bit patterns.
    Words floats;
    const int kept = instruction == to_bf16 ? 16 : 13;
    for (std::uint32_t i = 0; i < 1u << 12; ++i) {
      const std::uint32_t bits = generator()() >> kept << kept, middle = 1u << (kept - 1);
      for (const std::uint32_t more : {0u, 1u, middle - 1, middle, middle + 1}) floats.push_back(bits + more);
      floats.push_back(generator()());
    }
    for (const float x :
         {0.0f, -0.0f, 65504.0f, 65519.99f, 65520.0f, 5.9604645e-8f, 2.9802322e-8f, 2.98023260e-8f, 1e-40f,
          3.4028235e38f, 3.3961775e38f, std::numeric_limits<float>::infinity(),
          -std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()})
      floats.push_back(std::bit_cast<std::uint32_t>(x));
    floats.resize((floats.size() + 31) / 32 * 32);
    const Words bits = run_on_gpu(instruction, floats);
    for (std::size_t i = 0; i < floats.size(); ++i) {
      const auto x = std::bit_cast<float>(floats[i]);
      const std::uint32_t infinity = instruction == to_bf16 ? 0x7f80 : 0x7c00;
      const std::uint32_t want = instruction == to_bf16 ? tapestry::BFloat16(x).bits : tapestry::Half(x).bits;
      if (bits[i] != want && !(std::isnan(x) && (bits[i] & 0x7fff) > infinity)) CHECK(bits[i] == want);
    }
  }
}

TEST_CASE("two numbers are rounded into one word") {
  if (no_gpu()) return;
  for (const Instruction instruction : {bf16_pair, f16_pair}) {
    CAPTURE(static_cast<int>(instruction));
    const Words in = warps(instruction, [](int, std::uint32_t* w) {
      for (int i = 0; i < 2; ++i) w[i] = std::bit_cast<std::uint32_t>(whole(1 << 20) * 0x1p-13f);
    });
    const Words out = run_on_gpu(instruction, in);
    for (std::size_t i = 0; i < out.size(); ++i) {
      const float low = std::bit_cast<float>(in[2 * i]), high = std::bit_cast<float>(in[2 * i + 1]);
      CHECK(out[i] == (instruction == bf16_pair ? packed<tapestry::BFloat16>(low, high)
                                                : packed<tapestry::Half>(low, high)));
    }
  }
}

TEST_CASE("exp2_approx() is within its documented error") {
  if (no_gpu()) return;
  Words floats;
  const float infinity = std::numeric_limits<float>::infinity();
  for (const float x : {0.0f, -0.0f, 1.0f, -1.0f, 0.5f, -126.0f, -126.5f, -127.0f, -1e30f, 127.75f, 128.0f,
                        1e30f, 1e-40f, infinity, -infinity, std::numeric_limits<float>::quiet_NaN()})
    floats.push_back(std::bit_cast<std::uint32_t>(x));
  for (int i = 0; i < 4080; ++i) floats.push_back(std::bit_cast<std::uint32_t>(whole(1 << 20) * 0x1p-13f));
  const Words powers = run_on_gpu(power_of_2, floats);
  const auto at = [&](std::size_t i) { return std::bit_cast<float>(powers[i]); };
  CHECK((at(0) == 1 && at(1) == 1 && at(2) == 2 && at(3) == 0.5f && at(5) == 0x1p-126f));
  CHECK((at(6) == 0 && at(7) == 0 && at(8) == 0 && at(10) == infinity && at(11) == infinity));
  CHECK((at(12) == 1 && at(13) == infinity && at(14) == 0 && std::isnan(at(15))));
  for (std::size_t i = 16; i < floats.size();
       ++i) {  // the relative error is up to 2^-22, and subnormal results are 0
    const double want = std::exp2(static_cast<double>(std::bit_cast<float>(floats[i])));
    const bool fits = want < 0x1.01p-126 ? at(i) <= 0x1.01p-126f
                      : want >= 0x1p128  ? at(i) == infinity
                                         : std::abs(static_cast<double>(at(i)) - want) <= 0x1p-22 * want;
    CAPTURE(std::bit_cast<float>(floats[i]), at(i), want);
    if (!fits) CHECK(fits);
  }
}
