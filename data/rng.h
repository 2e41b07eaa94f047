#pragma once
// Random numbers that depend only on a key. A sample gets the same numbers on any worker.
#include <cstdint>

#include "tapestry/core/philox.h"

namespace tapestry::data {

/// Returns the key that one use of random numbers has in one epoch. Use 0 is the order of samples, use 1 is
/// Dataset::get, and use 2 + k is the k-th transform.
inline std::uint64_t derive_key(std::uint64_t seed, std::int64_t epoch, std::uint64_t use) {
  const Philox4 p = philox(seed, static_cast<std::uint64_t>(epoch), use);
  return (static_cast<std::uint64_t>(p.v[0]) << 32) | p.v[1];
}

/// Generates the random numbers of one (key, stream). It is cheap to construct, so each sample can have its
/// own.
class Rng {
 public:
  explicit Rng(std::uint64_t key, std::uint64_t stream = 0) : key_(key), stream_(stream) {}

  std::uint32_t next() {
    if (used_ == 4) {
      numbers_ = philox(key_, counter_++, stream_);
      used_ = 0;
    }
    return numbers_.v[used_++];
  }
  std::uint64_t next64() {
    const std::uint64_t high = next();
    return (high << 32) | next();
  }
  /// Returns a uniform number in [0, 1).
  double uniform() { return static_cast<double>(next64() >> 11) * 0x1p-53; }
  /// Returns an unbiased uniform integer in [0, n), for n >= 1 (Lemire, "Fast random integer generation in an
  /// interval", 2019).
  std::int64_t below(std::int64_t n) {
    const std::uint64_t range = static_cast<std::uint64_t>(n);
    __extension__ typedef unsigned __int128 Product;  // __extension__ silences -Wpedantic
    Product product = static_cast<Product>(next64()) * range;
    if (static_cast<std::uint64_t>(product) < range) {
      const std::uint64_t threshold = -range % range;
      while (static_cast<std::uint64_t>(product) < threshold)
        product = static_cast<Product>(next64()) * range;
    }
    return static_cast<std::int64_t>(product >> 64);
  }

 private:
  std::uint64_t key_, stream_, counter_ = 0;
  int used_ = 4;
  Philox4 numbers_{};
};

}  // namespace tapestry::data
