#include "tapestry/core/dtype.h"

#include <algorithm>

namespace tapestry {

const char* dtype_name(DType dtype) {
  constexpr const char* names[kNumDTypes] = {"float32", "float64", "float16", "bfloat16", "int64", "int32",
                                             "uint8",   "bool",    "int16",   "int8",     "uint16"};
  return names[static_cast<int>(dtype)];
}

namespace {
bool is_signed(DType t) { return t == DType::i64 || t == DType::i32 || t == DType::i16 || t == DType::i8; }
}  // namespace

DType promote(DType a, DType b) {
  if (a == b) return a;
  if (is_floating(a) != is_floating(b)) return is_floating(a) ? a : b;
  if (is_integral(a)) {
    // The bits that the values need without their sign. bool needs fewer than u8.
    constexpr auto bits = [](DType t) {
      return t == DType::boolean ? 1 : 8 * static_cast<int>(dtype_size(t)) - is_signed(t);
    };
    for (const DType t : {DType::u8, DType::i8, DType::i16, DType::u16, DType::i32})
      if (bits(t) >= std::max(bits(a), bits(b)) && (is_signed(t) || !(is_signed(a) || is_signed(b))))
        return t;
    return DType::i64;
  }
  return a == DType::f64 || b == DType::f64 ? DType::f64 : DType::f32;
}

}  // namespace tapestry
