#pragma once
#include <charconv>
#include <cstring>
#include <optional>

namespace tapestry::detail {

/// The number of threads in a value of OMP_NUM_THREADS, which may be a list with one number per nesting
/// level; the first one counts. nullopt unless it is a number of at least 1.
inline std::optional<int> omp_threads(const char* text) {
  while (*text == ' ' || *text == '\t') ++text;
  int n = 0;
  const auto [end, error] = std::from_chars(text, text + std::strlen(text), n);
  const bool valid = error == std::errc() && (*end == '\0' || *end == ',' || *end == ' ') && n >= 1;
  return valid ? std::optional(n) : std::nullopt;
}

}  // namespace tapestry::detail
