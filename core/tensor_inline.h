#pragma once
// The templates of Tensor, and functions that make tensors of given memory. core/tensor.h includes this file.
#include <cstdint>
#include <type_traits>
#include <utility>
#include <vector>

#include "tapestry/core/tensor.h"

namespace tapestry {

template <class T>
T Tensor::item() const {
  const Scalar value = item_scalar();
  if constexpr (std::is_same_v<T, bool>) {
    return value.to_double() != 0;
  } else if constexpr (std::is_integral_v<T>) {
    const std::int64_t whole = truncated(value);
    if (!std::in_range<T>(whole)) [[unlikely]]
      throw_does_not_fit(value);
    return static_cast<T>(whole);
  } else {
    return static_cast<T>(value.to_double());
  }
}

template <class T>
std::vector<T> Tensor::to_vector() const {
  const Tensor host = detach().to(kCPU, dtype_of<T>).contiguous();
  const T* const first = host.data<T>();
  return std::vector<T>(first, first + host.numel());
}

namespace detail {
/// A view of base's storage that the tape does not record. Strides and offset are in elements.
Tensor raw_view(const Tensor& base, const Shape& sizes, const Shape& strides, std::int64_t offset);
/// A tensor that uses a part of a storage. Strides and offset are in elements.
Tensor make_tensor(StorageRef storage, DType dtype, const Shape& sizes, const Shape& strides,
                   std::int64_t offset);
/// Throws ValueError, naming `op` and the argument, if `t` is undefined.
inline void check_defined(const char* op, const Tensor& t, const char* what = "input") {
  (check)(t.defined(), "[", op, "] ", what, " is an undefined tensor; pass a defined one");
}
}  // namespace detail

}  // namespace tapestry
