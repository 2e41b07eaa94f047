#pragma once
// Conversions between element types, for host and device code.
#include <cstdint>
#include <type_traits>

#include "tapestry/core/half.h"
#include "tapestry/core/philox.h"
#include "tapestry/core/scalar.h"

namespace tapestry::kernels {

/// True for f16 and bf16, which kernels compute in f32.
template <class T>
inline constexpr bool is_half = std::is_same_v<T, Half> || std::is_same_v<T, BFloat16>;

/// True for the integers that tensors can be stored in but that no kernel computes with.
template <class T>
inline constexpr bool is_stored_integer =
    std::is_same_v<T, std::int16_t> || std::is_same_v<T, std::int8_t> || std::is_same_v<T, std::uint16_t>;
constexpr bool is_stored_only(DType t) { return t == DType::i16 || t == DType::i8 || t == DType::u16; }

/// Converts as static_cast does, except that negative reals have a defined result for u8.
template <class To, class From>
TAPESTRY_HOST_DEVICE inline To convert(From x) {
  if constexpr (is_half<From>) return convert<To>(static_cast<float>(x));
  else if constexpr (is_half<To>) return To(static_cast<float>(x));
  else if constexpr (std::is_same_v<To, bool>) return x != From(0);
  else if constexpr (std::is_same_v<To, std::uint8_t> && std::is_floating_point_v<From>)
    return static_cast<To>(static_cast<std::int64_t>(x));
  else return static_cast<To>(x);
}
template <class T>
inline T convert_scalar(const Scalar& s) {
  return s.is_real() ? convert<T>(s.to_double()) : convert<T>(s.to_int());
}

}  // namespace tapestry::kernels
