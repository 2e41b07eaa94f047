#pragma once
// Vectors of f32 for loops that g++ does not vectorise well by itself, and conversions of short rows.
#include <bit>
#include <cstdint>
#include <cstring>

#include "tapestry/kernels/cpu/compute.h"
#include "tapestry/kernels/cpu/tile.h"
#include "tapestry/kernels/cpu/wide.h"

namespace tapestry::kernels::cpu {

/// A vector of n numbers. It is passed by reference only: without AVX, the ABI of the other way depends on
/// the compiler's version.
template <int n>
struct Lanes {
  static constexpr int kCount = n;
  using Vector [[gnu::vector_size(n * sizeof(float))]] = float;
  static void load(Vector& v, const float* from) { std::memcpy(&v, from, sizeof(v)); }
  static void store(float* to, const Vector& v) { std::memcpy(to, &v, sizeof(v)); }
};

/// Calls f.operator()<Lanes<16>>() compiled for AVX-512 if the processor has it and wide_loops() allows it,
/// and else f.operator()<Lanes<8>>() compiled like the rest of the library. f is to contain arithmetic only,
/// as for with_wide_vectors().
template <class F>
void with_lanes(const F& f) {
#ifdef TAPESTRY_WIDE_LOOPS
  if (wide_loops()) return detail::call_wide([&f] { f.template operator()<Lanes<16>>(); });
#endif
#ifdef __AVX512F__
  f.template operator()<Lanes<16>>();
#else
  f.template operator()<Lanes<8>>();
#endif
}

namespace detail {
using Words [[gnu::vector_size(8 * sizeof(std::uint32_t))]] = std::uint32_t;
using Halves [[gnu::vector_size(8 * sizeof(std::uint16_t))]] = std::uint16_t;

// 8 elements of a tensor as f32, and back. Rounds like the constructors of the types.
inline void load_eight(float* to, const float* from) {
  TileVector v;
  load_tile(v, from);
  store_tile(to, v);
}
inline void load_eight(float* to, const BFloat16* from) {
  Halves h;
  std::memcpy(&h, from, sizeof(h));
  const Words bits = __builtin_convertvector(h, Words) << 16;
  std::memcpy(to, &bits, sizeof(bits));
}
inline void load_eight(float* to, const Half* from) { to_float(from, to, 8); }
// 8 numbers rounded to bf16, each in the lower half of a word.
inline void round_eight(Words& rounded, const float* from) {
  Words bits;
  std::memcpy(&bits, from, sizeof(bits));
  const Words quiet = (bits >> 16) | 0x40u, nearest = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  rounded = (bits & 0x7fffffffu) > 0x7f800000u ? quiet : nearest;
}
inline void store_eight(float* to, const float* from) {
  TileVector v;
  load_tile(v, from);
  store_tile(to, v);
}
inline void store_eight(BFloat16* to, const float* from) {
  Words bits;
  round_eight(bits, from);
  const Halves h = __builtin_convertvector(bits, Halves);
  std::memcpy(static_cast<void*>(to), &h, sizeof(h));
}
inline void store_eight(Half* to, const float* from) { from_float(from, to, 8); }
}  // namespace detail

/// Converts n elements to f32. Rows are often short: for them a call of memmove(), which g++ makes of a loop
/// that copies, takes longer than the copy.
template <class T>
inline void widen_row(std::int64_t n, const T* from, float* to) {
  if (n < 8) {
    for (std::int64_t i = 0; i < n; ++i) to[i] = load(from[i]);
    return;
  }
  for (std::int64_t i = 0; i + 8 < n; i += 8) detail::load_eight(to + i, from + i);
  detail::load_eight(to + n - 8, from + n - 8);
}

/// Rounds n numbers to T.
template <class T>
inline void narrow_row(std::int64_t n, const float* from, T* to) {
  if (n < 8) {
    for (std::int64_t i = 0; i < n; ++i) to[i] = T(from[i]);
    return;
  }
  for (std::int64_t i = 0; i + 8 < n; i += 8) detail::store_eight(to + i, from + i);
  detail::store_eight(to + n - 8, from + n - 8);
}

/// Calls f.operator()<k>(first) for groups of k <= kMost indices that cover [0, n) and are of about the same
/// size.
template <int kMost, class F>
inline void in_groups(std::int64_t n, const F& f) {
  const std::int64_t groups = (n + kMost - 1) / kMost;
  for (std::int64_t g = 0, first = 0; g < groups; ++g) {
    const std::int64_t size = (n - first + groups - g - 1) / (groups - g);
    const auto call = [&]<int... k>(std::integer_sequence<int, k...>) {
      ((k + 1 == size ? f.template operator()<k + 1>(first) : void()), ...);
    };
    call(std::make_integer_sequence<int, kMost>());
    first += size;
  }
}

}  // namespace tapestry::kernels::cpu
