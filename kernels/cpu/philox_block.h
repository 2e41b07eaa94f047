#pragma once
// Philox for blocks of consecutive counters.
#include <algorithm>
#include <cstdint>
#if defined(__AVX2__)
#include <immintrin.h>
#endif

#include "tapestry/core/philox.h"

namespace tapestry::kernels::cpu {

inline constexpr int kPhiloxLanes = 16;  // counters per block

/// Computes the words of kPhiloxLanes consecutive counters in subsequence `stream`, starting at `counter`.
inline void philox_block(std::uint64_t seed, std::uint64_t counter, std::uint32_t* words,
                         std::uint64_t stream = 0) {
#if defined(__AVX2__)
  // The algorithm of core/philox.h with four counters per vector. Each 32-bit number is in the lower half of
  // a 64-bit lane, because _mm256_mul_epu32 reads only lower halves. The upper halves contain garbage that is
  // never read.
  constexpr int n = kPhiloxLanes / 4;
  const __m256i m0 = _mm256_set1_epi64x(0xD2511F53), m1 = _mm256_set1_epi64x(0xCD9E8D57);
  __m256i c0[n], c1[n], c2[n], c3[n];
  for (int i = 0; i < n; ++i) {
    c0[i] = _mm256_add_epi64(
        _mm256_set1_epi64x(static_cast<std::int64_t>(counter + static_cast<std::uint64_t>(4 * i))),
        _mm256_setr_epi64x(0, 1, 2, 3));
    c1[i] = _mm256_srli_epi64(c0[i], 32);
    c2[i] = _mm256_set1_epi64x(static_cast<std::int64_t>(stream));
    c3[i] = _mm256_set1_epi64x(static_cast<std::int64_t>(stream >> 32));
  }
  auto k0 = static_cast<std::uint32_t>(seed), k1 = static_cast<std::uint32_t>(seed >> 32);
  for (int round = 0; round < 10; ++round) {
    const __m256i key0 = _mm256_set1_epi64x(k0), key1 = _mm256_set1_epi64x(k1);
    for (int i = 0; i < n; ++i) {
      const __m256i p0 = _mm256_mul_epu32(m0, c0[i]), p1 = _mm256_mul_epu32(m1, c2[i]);
      c0[i] = _mm256_xor_si256(_mm256_xor_si256(_mm256_srli_epi64(p1, 32), c1[i]), key0);
      c2[i] = _mm256_xor_si256(_mm256_xor_si256(_mm256_srli_epi64(p0, 32), c3[i]), key1);
      c1[i] = p1;
      c3[i] = p0;
    }
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  for (int i = 0; i < n; ++i) {
    const __m256i a = _mm256_blend_epi32(c0[i], _mm256_slli_epi64(c1[i], 32), 0xAA);
    const __m256i b = _mm256_blend_epi32(c2[i], _mm256_slli_epi64(c3[i], 32), 0xAA);
    const __m256i even = _mm256_unpacklo_epi64(a, b), odd = _mm256_unpackhi_epi64(a, b);
    auto* const to = reinterpret_cast<__m256i*>(words + 16 * i);
    _mm256_storeu_si256(to, _mm256_permute2x128_si256(even, odd, 0x20));
    _mm256_storeu_si256(to + 1, _mm256_permute2x128_si256(even, odd, 0x31));
  }
#else
  for (int i = 0; i < kPhiloxLanes; ++i) {
    const Philox4 four = philox(seed, counter + static_cast<std::uint64_t>(i), stream);
    std::copy(four.v, four.v + 4, words + 4 * i);
  }
#endif
}

}  // namespace tapestry::kernels::cpu
