#pragma once
// The random function Philox 4x32-10, for host and device code. Programs usually draw numbers through a
// Generator (generator.h).
#include <cstdint>

#ifdef __CUDACC__
#define TAPESTRY_HOST_DEVICE __host__ __device__
#else
#define TAPESTRY_HOST_DEVICE
#endif

namespace tapestry {

struct Philox4 {
  std::uint32_t v[4];
};

/// The four random numbers of `counter` in subsequence `stream` of `seed`. Ten rounds, with the multipliers
/// of Salmon et al. 2011, table 2, and the Weyl increments of the key of section 4.
TAPESTRY_HOST_DEVICE inline Philox4 philox(std::uint64_t seed, std::uint64_t counter,
                                           std::uint64_t stream = 0) {
  std::uint32_t k0 = static_cast<std::uint32_t>(seed), k1 = static_cast<std::uint32_t>(seed >> 32);
  std::uint32_t c0 = static_cast<std::uint32_t>(counter), c1 = static_cast<std::uint32_t>(counter >> 32),
                c2 = static_cast<std::uint32_t>(stream), c3 = static_cast<std::uint32_t>(stream >> 32);
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t p0 = static_cast<std::uint64_t>(0xD2511F53u) * c0;
    const std::uint64_t p1 = static_cast<std::uint64_t>(0xCD9E8D57u) * c2;
    const std::uint32_t n0 = static_cast<std::uint32_t>(p1 >> 32) ^ c1 ^ k0;
    const std::uint32_t n2 = static_cast<std::uint32_t>(p0 >> 32) ^ c3 ^ k1;
    c1 = static_cast<std::uint32_t>(p1);
    c3 = static_cast<std::uint32_t>(p0);
    c0 = n0;
    c2 = n2;
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return {{c0, c1, c2, c3}};
}

/// Uniform in [0, 1), with 24 random bits. Every result is exact in float, so all devices give the same
/// value.
TAPESTRY_HOST_DEVICE inline float uniform_float(std::uint32_t bits) {
  return static_cast<float>(bits >> 8) * 0x1p-24f;
}
/// Uniform in [0, 1), with 53 random bits.
TAPESTRY_HOST_DEVICE inline double uniform_double(std::uint32_t hi, std::uint32_t lo) {
  const std::uint64_t bits = (static_cast<std::uint64_t>(hi) << 32) | lo;
  return static_cast<double>(bits >> 11) * 0x1p-53;
}

}  // namespace tapestry
