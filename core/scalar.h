#pragma once
// Scalar: a number of any C++ type, as an operand of an operation.
#include <cstdint>
#include <limits>
#include <type_traits>

#include "tapestry/core/dtype.h"

namespace tapestry {

/// Holds a bool, an integer or a double. In arithmetic with a tensor it follows PyTorch's rule: the result
/// keeps the tensor's dtype unless the scalar's category (bool, integer, real) is higher. An f32 tensor * 2.0
/// stays f32; an i64 tensor * 2.0 becomes f32.
class Scalar {
 public:
  template <class T>
  requires std::is_arithmetic_v<T> Scalar(T v) {  // NOLINT: `x * 2` reads well
    if constexpr (std::is_same_v<T, bool>) {
      kind_ = Kind::boolean;
      integer_ = v;
    } else if constexpr (std::is_integral_v<T>) {
      kind_ = Kind::integer;
      integer_ = static_cast<std::int64_t>(v);
    } else {
      real_ = static_cast<double>(v);
    }
  }
  bool is_real() const { return kind_ == Kind::real; }
  bool is_bool() const { return kind_ == Kind::boolean; }
  double to_double() const { return is_real() ? real_ : static_cast<double>(integer_); }
  /// Rounds towards zero. A real number outside the range of int64 gives the nearest int64; NaN gives 0.
  std::int64_t to_int() const {
    if (!is_real()) return integer_;
    if (real_ >= -0x1p63 && real_ < 0x1p63) return static_cast<std::int64_t>(real_);
    using Limits = std::numeric_limits<std::int64_t>;
    return real_ > 0 ? (Limits::max)() : real_ < 0 ? (Limits::min)() : 0;
  }
  /// The result dtype of an operation on this number and a tensor of dtype `t`.
  DType promote_with(DType t) const {
    if (is_real() && !is_floating(t)) return DType::f32;
    if (kind_ == Kind::integer && t == DType::boolean) return DType::i64;
    return t;
  }

 private:
  enum class Kind : std::uint8_t { boolean, integer, real } kind_ = Kind::real;
  union {
    std::int64_t integer_;
    double real_;
  };
};

}  // namespace tapestry
