#pragma once
// Strings as template arguments.
#include <cstddef>
#include <string_view>

namespace tapestry {

/// `template <FixedString kName> void f();` can be called as f<"name">().
template <std::size_t kLength>
struct FixedString {
  char text[kLength] = {};
  constexpr FixedString() = default;
  constexpr FixedString(const char (&from)[kLength]) {  // NOLINT
    for (std::size_t i = 0; i < kLength; ++i) text[i] = from[i];
  }
  constexpr std::string_view view() const { return {text, kLength - 1}; }
};
template <std::size_t kA, std::size_t kB>
constexpr FixedString<kA + kB - 1> operator+(const FixedString<kA>& a, const char (&b)[kB]) {
  FixedString<kA + kB - 1> sum;
  for (std::size_t i = 0; i + 1 < kA; ++i) sum.text[i] = a.text[i];
  for (std::size_t i = 0; i < kB; ++i) sum.text[kA - 1 + i] = b[i];
  return sum;
}

}  // namespace tapestry
