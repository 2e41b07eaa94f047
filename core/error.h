#pragma once
// The exceptions, and check() and fail(), which throw them. The text of each error has the form
// `[op] what was wrong, with the actual values; what to do`.
//
// Other libraries define function-like macros named check, fail, min and max. Public headers therefore write
// (check)(...), (fail)(...) and (max)(): a macro is not expanded if a parenthesis separates it from its
// arguments.
#ifndef __cpp_rtti
#error "Tapestry reads the types of modules at run time: compile without -fno-rtti"
#endif
#include <initializer_list>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

#include "tapestry/core/device.h"
#include "tapestry/core/dtype.h"
#include "tapestry/core/shape.h"

namespace tapestry {

/// The base class of all exceptions of Tapestry.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;

  /// Appends " (in <place>)" to the text. Calls after the first do nothing, because the innermost place,
  /// which comes first, is the most useful.
  void add_place(std::string_view place) {
    if (std::exchange(placed_, true)) return;
    // Only the text of the exception object changes, so `throw;` rethrows the same type.
    static_cast<std::runtime_error&>(*this) =
        std::runtime_error(std::string(what()).append(" (in ").append(place).append(")"));
  }

 private:
  bool placed_ = false;
};
// clang-format off
class ValueError : public Error { using Error::Error; };          ///< a wrong shape or argument
class IndexError : public Error { using Error::Error; };          ///< an index or dimension out of range
class TypeError : public Error { using Error::Error; };           ///< a wrong dtype
class DeviceError : public Error { using Error::Error; };         ///< a wrong or absent device
class OutOfMemoryError : public Error { using Error::Error; };
class MissingKernelError : public Error { using Error::Error; };  ///< no kernel for this device and dtype
class AutogradError : public Error { using Error::Error; };       ///< misuse of the tape
class IoError : public Error { using Error::Error; };             ///< a file that is missing, broken or unwritable
// clang-format on

/// One part of a message. Holds a reference, and formats only if an error is thrown, so that a check that
/// passes costs almost nothing.
class Piece {
 public:
  template <class T>
  requires std::is_integral_v<T> Piece(T v)  // NOLINT
      : kind_(std::is_unsigned_v<T> ? Kind::natural : Kind::integer),
        integer_(static_cast<std::int64_t>(v)) {}
  Piece(double v) : kind_(Kind::real), real_(v) {}              // NOLINT
  Piece(const char* v) : kind_(Kind::text), text_(v) {}         // NOLINT
  Piece(std::string_view v) : kind_(Kind::text), text_(v) {}    // NOLINT
  Piece(const std::string& v) : kind_(Kind::text), text_(v) {}  // NOLINT
  Piece(const Shape& v) : kind_(Kind::shape), shape_(&v) {}     // NOLINT
  Piece(DType v) : kind_(Kind::text), text_(dtype_name(v)) {}   // NOLINT
  Piece(Device v) : kind_(Kind::device), device_(v) {}          // NOLINT

  void append_to(std::string& out) const;

 private:
  enum class Kind { integer, natural, real, text, shape, device } kind_;
  union {
    std::int64_t integer_;
    double real_;
    std::string_view text_;
    const Shape* shape_;
    Device device_;
  };
};

/// Concatenates the pieces.
std::string concat(std::initializer_list<Piece> pieces);

/// Throws E with the concatenated pieces as its text. fail() calls it, so that a message of other types
/// compiles to no second throw: there are thousands of messages.
template <class E>
[[noreturn, gnu::cold, gnu::noinline]] void throw_error(std::initializer_list<Piece> pieces) {
  throw E(concat(pieces));
}

/// Throws E with the concatenated parts as its text.
template <class E = ValueError, class... Parts>
[[noreturn, gnu::cold, gnu::noinline]] void(fail)(const Parts&... parts) {
  throw_error<E>({Piece(parts)...});
}

/// Throws E with the concatenated parts as its text, unless `ok`.
template <class E = ValueError, class... Parts>
inline void(check)(bool ok, const Parts&... parts) {
  if (!ok) [[unlikely]]
    fail<E>(parts...);
}

}  // namespace tapestry
