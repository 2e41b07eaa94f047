#pragma once
#include <cstdint>
#include <string_view>

namespace tapestry::distributed {

/// The 64-bit FNV-1a hash (Fowler, Noll, Vo). It is the same in every process. Not for secrets.
constexpr std::uint64_t fnv1a(std::string_view bytes) {
  std::uint64_t hash = 0xcbf29ce484222325u;
  for (const char c : bytes) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  return hash;
}

/// The finalizer of SplitMix64 (Steele, Lea, Flood 2014). It is a bijection, and not linear.
constexpr std::uint64_t mix(std::uint64_t x) {
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
  x = (x ^ x >> 27) * 0x94d049bb133111ebu;
  return x ^ x >> 31;
}

}  // namespace tapestry::distributed
