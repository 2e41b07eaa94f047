#pragma once
// What draws random cases: the environment variables TAPESTRY_FUZZ_SEED and TAPESTRY_FUZZ_CASES.
#include <charconv>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <string>
#include <system_error>

namespace tapestry::test {

/// The number in this environment variable, or `otherwise`. Throws std::invalid_argument if it is not a
/// positive number.
inline std::uint64_t fuzz_setting(const char* name, std::uint64_t otherwise) {
  const char* const text = std::getenv(name);
  if (!text) return otherwise;
  std::uint64_t number = 0;
  const char* const end = text + std::strlen(text);
  if (const auto [at, error] = std::from_chars(text, end, number);
      at != end || error != std::errc() || number == 0)
    throw std::invalid_argument(std::string(name) + " is '" + text + "', not a positive number");
  return number;
}

}  // namespace tapestry::test
