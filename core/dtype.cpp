#include "tapestry/core/dtype.h"

#include <algorithm>

namespace tapestry {

const char* dtype_name(DType dtype) {
  constexpr const char* names[kNumDTypes] = {"float32", "float64", "float16", "bfloat16",
                                             "int64",   "int32",   "uint8",   "bool"};
  return names[static_cast<int>(dtype)];
}

DType promote(DType a, DType b) {
  if (a == b) return a;
  if (is_floating(a) != is_floating(b)) return is_floating(a) ? a : b;
  // The enumeration lists the integers from the widest to the narrowest. Each type holds all values of the
  // narrower ones, because u8 and bool have no negative values.
  if (is_integral(a)) return std::min(a, b);
  return a == DType::f64 || b == DType::f64 ? DType::f64 : DType::f32;
}

}  // namespace tapestry
