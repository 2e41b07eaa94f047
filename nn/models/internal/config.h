#pragma once
// What config.cpp and config_gguf.cpp share.
#include <cstdint>

namespace tapestry::nn::detail {

/// The greatest size of any kind, so that products of two fit in 64 bits.
inline constexpr std::int64_t kMostInConfig = INT32_MAX;

}  // namespace tapestry::nn::detail
