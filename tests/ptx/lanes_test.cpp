// Compares the PTX instructions of portable.cuh on a GPU with the emulator, lane by lane. All emulated tests
// of kernels rely on the emulator's implementation. Without a GPU, only the emulator is compared with the PTX
// ISA's description.
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

[[maybe_unused]] bool is_nan(Instruction instruction, std::uint32_t bits) {
  if (instruction == to_bf16) return (bits & 0x7fff) > 0x7f80;
  if (instruction == to_f16) return (bits & 0x7fff) > 0x7c00;
  return std::isnan(std::bit_cast<float>(bits));
}

/// exp2_approx() has a relative error of up to 2^-22, and may return 0 near the least normal number.
[[maybe_unused]] bool is_near(std::uint32_t got, std::uint32_t want) {
  const float x = std::bit_cast<float>(got), y = std::bit_cast<float>(want);
  return x == y || std::abs(x - y) <= 0x1p-22f * y || (x <= 0x1.01p-126f && y <= 0x1.01p-126f);
}

/// Checks that the GPU's words equal the emulator's. A conversion may return any NaN.
void compare(Instruction instruction, const Words& in) {
  const Words emulated = emulate(instruction, in);
  if (no_gpu()) return;
#if TAPESTRY_HAS_CUDA
  const Words gpu = run_on_gpu(instruction, in);
  REQUIRE(gpu.size() == emulated.size());
  const auto n = static_cast<std::size_t>(words_out(instruction));
  int shown = 0;
  for (std::size_t i = 0; i < gpu.size() && shown < 5; ++i) {
    if (gpu[i] == emulated[i]) continue;
    if (instruction >= to_bf16 && is_nan(instruction, gpu[i]) && is_nan(instruction, emulated[i])) continue;
    if (instruction == power_of_2 && is_near(gpu[i], emulated[i])) continue;
    const auto warp = i / n / 32, lane = i / n % 32, word = i % n;
    CAPTURE(warp, lane, word, in[i / n * static_cast<std::size_t>(words_in(instruction))]);
    CHECK(gpu[i] == emulated[i]);
    ++shown;
  }
#endif
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
  compare(instruction, in);

  // Computes the expected product from the layout that the PTX ISA defines: of the matrix d, lane l holds
  // rows l / 4 and l / 4 + 8, and columns 2 (l % 4) and 2 (l % 4) + 1. The layouts of a and b are similar.
  const Words d = emulate(instruction, in);
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
  check_mma<tapestry::BFloat16>(mma);
  check_mma<tapestry::Half>(mma_f16);
}

TEST_CASE("ldmatrix deals out rows of shared memory") {
  for (const Instruction instruction : {ldmatrix_x4, ldmatrix_x2, ldmatrix_x4_trans, ldmatrix_x2_trans}) {
    CAPTURE(static_cast<int>(instruction));
    const Words in = shared_rows(instruction);
    compare(instruction, in);

    const bool trans = instruction == ldmatrix_x4_trans || instruction == ldmatrix_x2_trans;
    const Words out = emulate(instruction, in);
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
  const Words in = warps(cp_async, [](int, std::uint32_t* w) {
    for (int i = 0; i < 8; ++i) w[i] = generator()() | 1;
    w[8] = below(4);
  });
  compare(cp_async, in);
  const Words out = emulate(cp_async, in);
  for (std::size_t lane = 0; lane < out.size() / 8; ++lane)
    for (std::size_t i = 0; i < 8; ++i)
      CHECK(out[lane * 8 + i] == ((in[lane * 12 + 8] >> i / 4 & 1) != 0 ? in[lane * 12 + i] : 0));
}

TEST_CASE("cp.async of 4 bytes copies, or writes zeros") {
  const Words in = warps(cp_async4, [](int, std::uint32_t* w) {
    w[0] = generator()() | 1;
    w[1] = below(2);
  });
  compare(cp_async4, in);
  const Words out = emulate(cp_async4, in);
  for (std::size_t lane = 0; lane < out.size(); ++lane)
    CHECK(out[lane] == (in[lane * 2 + 1] != 0 ? in[lane * 2] : 0));
}

TEST_CASE("conversions round to nearest, ties to even") {
  Words halves(1 << 16);
  for (std::size_t i = 0; i < halves.size(); ++i) halves[i] = static_cast<std::uint32_t>(i);
  compare(from_f16, halves);

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
    compare(instruction, floats);
    const Words bits = emulate(instruction, floats);
    CHECK(bits[0] == (instruction == to_bf16 ? floats[0] >> 16 : bits[0]));
    CHECK(bits[1] == bits[0]);
  }
}

TEST_CASE("two numbers are rounded into one word") {
  for (const Instruction instruction : {bf16_pair, f16_pair}) {
    CAPTURE(static_cast<int>(instruction));
    const Words in = warps(instruction, [](int, std::uint32_t* w) {
      for (int i = 0; i < 2; ++i) w[i] = std::bit_cast<std::uint32_t>(whole(1 << 20) * 0x1p-13f);
    });
    compare(instruction, in);
    const Words out = emulate(instruction, in);
    for (std::size_t i = 0; i < out.size(); ++i) {
      const float low = std::bit_cast<float>(in[2 * i]), high = std::bit_cast<float>(in[2 * i + 1]);
      CHECK(out[i] == (instruction == bf16_pair ? packed<tapestry::BFloat16>(low, high)
                                                : packed<tapestry::Half>(low, high)));
    }
  }
}

TEST_CASE("exp2_approx() is within its documented error") {
  Words floats;
  const float infinity = std::numeric_limits<float>::infinity();
  for (const float x : {0.0f, -0.0f, 1.0f, -1.0f, 0.5f, -126.0f, -126.5f, -127.0f, -1e30f, 127.75f, 128.0f,
                        1e30f, 1e-40f, infinity, -infinity, std::numeric_limits<float>::quiet_NaN()})
    floats.push_back(std::bit_cast<std::uint32_t>(x));
  for (int i = 0; i < 4080; ++i) floats.push_back(std::bit_cast<std::uint32_t>(whole(1 << 20) * 0x1p-13f));
  compare(power_of_2, floats);
  const Words powers = emulate(power_of_2, floats);
  const auto at = [&](std::size_t i) { return std::bit_cast<float>(powers[i]); };
  CHECK((at(0) == 1 && at(1) == 1 && at(2) == 2 && at(3) == 0.5f && at(5) == 0x1p-126f));
  CHECK((at(6) == 0 && at(7) == 0 && at(8) == 0 && at(10) == infinity && at(11) == infinity));
  CHECK((at(12) == 1 && at(13) == infinity && at(14) == 0 && std::isnan(at(15))));
}
