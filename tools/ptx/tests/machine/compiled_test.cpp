// Kernels that nvcc compiled when this program was built. Without nvcc, the tests say so and end.
#include <bit>
#include <cmath>
#include <fstream>
#include <iostream>
#include <sstream>

#include "tapestry/tools/ptx/machine.h"
#include "tapestry/tools/ptx/tests/catch.h"

using namespace tapestry::ptx;
using u64 = std::uint64_t;

namespace {

/// False if there was no nvcc.
bool load(Machine& m) {
#ifdef TAPESTRY_PTX_FILE
  std::ifstream file(TAPESTRY_PTX_FILE);
  std::stringstream text;
  text << file.rdbuf();
  REQUIRE(file);
  m.load(text.str());
  return true;
#else
  (void)m;
  std::cout << "not tested: nvcc was not found when the tests were built\n";
  return false;
#endif
}
template <class T>
u64 upload(Machine& m, const std::vector<T>& values) {
  const u64 at = m.memory().allocate(values.size() * sizeof(T));
  m.memory().write(at, values.data(), values.size() * sizeof(T));
  return at;
}

}  // namespace

TEST_CASE("what nvcc made of saxpy and of a softmax gives their results") {
  for (const u64 seed : {u64{0}, u64{3}}) {
    Machine m;
    m.options().seed = seed;
    if (!load(m)) return;
    std::vector<float> x(1000), y(1000);
    for (int i = 0; i < 1000; ++i) {
      x[static_cast<std::size_t>(i)] = std::sin(static_cast<float>(i)) * 5;
      y[static_cast<std::size_t>(i)] = static_cast<float>(i);
    }
    const u64 xs = upload(m, x), ys = upload(m, y), out = m.memory().allocate(2000);
    m.launch("saxpy", {4}, {256}, 0, 1000, 1.5f, xs, ys);
    std::vector<float> found(1000);
    m.memory().read(ys, found.data(), 4000);
    for (std::size_t i = 0; i < 1000; ++i)
      if (found[i] != std::fma(1.5f, x[i], y[i])) FAIL("saxpy " << i);
    m.launch("softmax", {5}, {128}, 0, xs, out, 200);
    std::vector<std::uint16_t> rows(1000);
    m.memory().read(out, rows.data(), 2000);
    for (std::size_t row = 0; row < 5; ++row) {
      double sum = 0;
      for (std::size_t i = 0; i < 200; ++i) sum += std::exp(static_cast<double>(x[200 * row + i]));
      for (std::size_t i = 0; i < 200; ++i) {
        const double exact = std::exp(static_cast<double>(x[200 * row + i])) / sum;
        const auto value =
            static_cast<double>(std::bit_cast<float>(static_cast<std::uint32_t>(rows[200 * row + i]) << 16));
        if (std::fabs(value - exact) > exact * 0x1.01p-8)
          FAIL("softmax " << row << ", " << i);  // half a unit of bf16
      }
    }
  }
}

TEST_CASE("an error in a compiled kernel names the line of its source") {
  Machine m;
  if (!load(m)) return;
  const u64 xs = upload(m, std::vector<float>(300, 1)), ys = m.memory().allocate(4 * 512);
  CHECK_THROWS_WITH(m.launch("saxpy_without_end", {2}, {256}, 0, 300, 1.0f, xs, ys),
                    ContainsSubstring("kernels.cu:36 (ld.global") &&
                        ContainsSubstring("block (1, 0, 0), thread (44, 0, 0)") &&
                        ContainsSubstring("0 bytes beyond the end of an allocation of 1200 bytes"));
}

TEST_CASE("functions of the CUDA math library are as accurate as documented") {
  Machine m;
  if (!load(m)) return;
  std::vector<double> x(40);
  std::vector<float> f(40);
  for (std::size_t i = 0; i < 40; ++i) {
    x[i] = 0.37 * static_cast<double>(i) - 7.1;
    f[i] = 0.31f * static_cast<float>(i) - 6.2f;
  }
  const u64 xs = upload(m, x), fs = upload(m, f), ys = m.memory().allocate(8 * 320);
  m.launch("functions", {1}, {64}, 0, xs, fs, ys, 40);
  std::vector<double> y(320);
  m.memory().read(ys, y.data(), 8 * 320);
  for (std::size_t i = 0; i < 40; ++i) {
    const double g = static_cast<double>(f[i]);
    const double exact[] = {
        std::exp(x[i]),
        std::pow(x[i] * x[i], 1.7),
        x[i] / 3.0 + 1 / std::sqrt(x[i] * x[i] + 1),
        std::sin(g * 1e3),
        std::log(static_cast<double>(std::fma(f[i], f[i], 0.5f))),
        std::pow(static_cast<double>(std::fabs(f[i]) + 0.1f), static_cast<double>(3.3f)),
        std::tanh(g),
        static_cast<double>(static_cast<long long>(f[i] * 1e6f) / static_cast<long long>(i + 3) % 1000)};
    for (std::size_t k = 0; k < 8; ++k) {
      INFO("function " << k << " of " << x[i] << ", " << f[i]);
      const double units = k < 4   ? 0x1p-51
                           : k < 7 ? 0x1p-21
                                   : 0;  // 2 and 4 units in the last place, and none
      CHECK(std::fabs(y[8 * i + k] - exact[k]) <= units * std::max(std::fabs(exact[k]), k == 2
                                                                                            ? std::fabs(x[i])
                                                                                        : k == 4 ? 1.0
                                                                                                 : 0.0));
    }
  }
}
