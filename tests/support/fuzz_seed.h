#pragma once
// The seed and the number of random cases.
#include <cstdint>
#include <cstdlib>
#include <ctime>

namespace tapestry::test {

inline std::uint64_t fuzz_setting(const char* name, std::uint64_t fallback) {
  const char* const text = std::getenv(name);
  return text ? std::strtoull(text, nullptr, 10) : fallback;
}

/// Days since 1970, so that each day draws other cases, or TAPESTRY_FUZZ_SEED.
inline std::uint64_t fuzz_seed() {
  return fuzz_setting("TAPESTRY_FUZZ_SEED", static_cast<std::uint64_t>(std::time(nullptr)) / 86'400);
}
/// This number, or TAPESTRY_FUZZ_CASES.
inline int fuzz_cases(int fallback) {
  return static_cast<int>(fuzz_setting("TAPESTRY_FUZZ_CASES", static_cast<std::uint64_t>(fallback)));
}

}  // namespace tapestry::test
