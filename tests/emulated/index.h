#pragma once
// Values and indices for the tests of kernels that move rows by index.
#include <cstdint>
#include <vector>

#include "tapestry/kernels/cuda/index.cuh"
#include "tests/emulated/elementwise.h"
#include "tests/emulated/values.h"

namespace emulated {

using tapestry::is_floating, tapestry::dtype_of;

/// Numbers whose sums depend on the order of additions; 0 and 1 if T is an integer type.
template <class T>
std::vector<float> inexact(std::int64_t n, unsigned salt) {
  std::vector<float> v(static_cast<std::size_t>(n));
  Random random(salt);
  for (float& x : v) {
    const std::uint32_t bits = random();
    x = is_floating(dtype_of<T>) ? static_cast<float>((static_cast<int>(bits >> 16) - 32768) / 1000.0)
                                 : static_cast<float>(bits >> 31);
  }
  return v;
}
/// Indices in [0, rows). A quarter of them are equal.
inline std::vector<std::int64_t> indices(std::int64_t n, std::int64_t rows, unsigned salt) {
  std::vector<std::int64_t> v(static_cast<std::size_t>(n));
  Random random(salt);
  for (std::int64_t& x : v) {
    const std::uint32_t bits = random();
    x = bits >> 30 == 0 ? rows / 2 : static_cast<std::int64_t>(bits >> 8) % rows;
  }
  return v;
}

}  // namespace emulated
