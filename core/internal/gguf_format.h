#pragma once
// What the reader and the writer of GGUF files share.
#include <cstdint>
#include <string>
#include <string_view>

namespace tapestry::detail {

inline constexpr std::uint32_t kGgufMagic = 0x46554747;  // "GGUF"
inline constexpr std::uint32_t kGgufString = 8, kGgufArray = 9;
inline constexpr std::int64_t kGgufAlignment = 32;
inline constexpr std::size_t kGgufMaxName = 65535;
inline constexpr int kGgufMaxDims = 4;  // GGML_MAX_DIMS

/// Text of a file for an error message: without control characters and other bytes that are not ASCII.
std::string gguf_printable(std::string_view text);

}  // namespace tapestry::detail
