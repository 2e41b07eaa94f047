#pragma once
// Tensors of which all ranks and elements have different values, for tests of collectives.
#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <string>
#include <vector>

#include "tapestry/core/tensor.h"
#include "tests/support/distributed.h"
#include "tests/support/dtypes.h"
#include "tests/support/effort.h"

namespace lists_test {

using namespace tapestry;
using namespace tapestry::distributed;

inline constexpr DType kAll[] = {DType::f32, DType::f64, DType::f16, DType::bf16,
                                 DType::i64, DType::i32, DType::u8,  DType::boolean};
inline constexpr ReduceOp kOps[] = {ReduceOp::sum, ReduceOp::mean, ReduceOp::min, ReduceOp::max,
                                    ReduceOp::product};
inline constexpr int kSizes[] = {1, 2, 3, kSanitized ? 3 : 5};

using Tensors = std::vector<Tensor>;

// Random numbers with full mantissas and a mean far from 0, so that sums depend on their order. `seed` names
// the tensor, and each rank has other numbers.
inline Tensor numbers(DType dtype, const Shape& shape, int rank, unsigned seed) {
  std::uint64_t state = seed * 64 + static_cast<unsigned>(rank) + 1;
  const Tensor t = empty(shape, dtype);
  tests::for_dtype(dtype, [&]<class T>() {
    T* const values = t.data<T>();
    for (std::int64_t i = 0, n = t.numel(); i < n; ++i) {
      state = state * 6364136223846793005u + 1442695040888963407u;  // Knuth's MMIX
      const auto bits = static_cast<std::uint32_t>(state >> 32);
      const double x = static_cast<double>(bits) / 4294967296.0;
      values[i] = tests::from_double<T>(is_floating(dtype)        ? 0.7 + x
                                        : dtype == DType::boolean ? static_cast<double>(x < 0.3)
                                                                  : static_cast<double>(bits % 200));
    }
  });
  return t;
}

inline Tensor garbage(DType dtype, const Shape& shape) {
  const Tensor t = empty(shape, dtype);
  if (t.numel() > 0) std::memset(t.raw_data(), 0x5f, t.nbytes());
  return t;
}

inline bool same_bytes(const void* a, const void* b, std::size_t bytes) {
  return bytes == 0 || std::memcmp(a, b, bytes) == 0;
}

/// Throws unless call() throws an E whose text has `words`.
template <class E, class F>
void refused(const std::string& words, const F& call) {
  std::string text = "nothing was thrown";
  try {
    call();
  } catch (const E& e) {
    text = e.what();
    if (text.find(words) != std::string::npos) return;
  }
  throw std::runtime_error("\"" + words + "\" was expected: " + text);
}

}  // namespace lists_test
