#pragma once
// Calls a function template with the C++ type of a dtype, and converts elements to and from double. It uses
// only core, so that the operations under test do not help to test themselves.
#include <cstdint>
#include <type_traits>

#include "tapestry/core/dtype.h"
#include "tapestry/core/half.h"

namespace tests {

/// Calls f.operator()<T>(), where T is the C++ type of the dtype: for_dtype(dtype, [&]<class T>() { ... }).
template <class F>
decltype(auto) for_dtype(tapestry::DType dtype, F&& f) {
  using tapestry::DType;
  switch (dtype) {
    case DType::f32:
      return f.template operator()<float>();
    case DType::f64:
      return f.template operator()<double>();
    case DType::f16:
      return f.template operator()<tapestry::Half>();
    case DType::bf16:
      return f.template operator()<tapestry::BFloat16>();
    case DType::i64:
      return f.template operator()<std::int64_t>();
    case DType::i32:
      return f.template operator()<std::int32_t>();
    case DType::u8:
      return f.template operator()<std::uint8_t>();
    case DType::i16:
      return f.template operator()<std::int16_t>();
    case DType::i8:
      return f.template operator()<std::int8_t>();
    case DType::u16:
      return f.template operator()<std::uint16_t>();
    case DType::boolean:
      break;
  }
  return f.template operator()<bool>();
}

template <class T>
inline constexpr bool kIsSixteenBits =
    std::is_same_v<T, tapestry::Half> || std::is_same_v<T, tapestry::BFloat16>;

/// The element of type T that is nearest to v. f16 and bf16 round v to f32 first.
template <class T>
T from_double(double v) {
  if constexpr (kIsSixteenBits<T>) return T(static_cast<float>(v));
  else if constexpr (std::is_same_v<T, bool>) return v != 0;
  else return static_cast<T>(v);
}

template <class T>
double to_double(T v) {
  if constexpr (kIsSixteenBits<T>) return static_cast<double>(static_cast<float>(v));
  else return static_cast<double>(v);
}

}  // namespace tests
