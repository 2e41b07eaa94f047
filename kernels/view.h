#pragma once
// The views of tensors that kernels take: plain addresses, dtypes, sizes and strides, which can be copied to
// a GPU.
#include <concepts>
#include <cstddef>
#include <cstdint>

#include "tapestry/core/error.h"
#include "tapestry/core/tensor_fwd.h"

namespace tapestry::kernels {

namespace detail {
/// Throws the TypeError for a kernel that reads an array of dtype `has` as elements of dtype `asked`.
[[noreturn, gnu::cold]] void wrong_array_type(DType has, DType asked);

inline void check_array_type(const void* data, DType has, DType asked) {
  // A bool is a byte of 0 or 1, and several kernels treat it as a u8.
  if (data && has != asked && !(has == DType::boolean && asked == DType::u8)) [[unlikely]]
    wrong_array_type(has, asked);
}
}  // namespace detail

/// The address and dtype of an array that a kernel reads. The contract of the slot says how many elements it
/// has. An operand that is left out is null.
class ConstArray {
 public:
  ConstArray() = default;
  ConstArray(std::nullptr_t) {}  // NOLINT: operands convert implicitly
  /// The elements of a tensor. An undefined tensor gives null. A template, so that kernels, which see no
  /// tensors, need not read core/tensor.h.
  template <std::same_as<Tensor> T>
  ConstArray(const T& t) {  // NOLINT
    if (t.defined()) data_ = t.raw_data(), dtype_ = t.dtype();
  }
  template <class T, DType dtype = dtype_of<std::remove_const_t<T>>>
  ConstArray(T* data) : data_(data), dtype_(dtype) {}  // NOLINT

  /// Throws TypeError unless T is the type of the dtype.
  template <class T>
  const T* as() const {
    detail::check_array_type(data_, dtype_, dtype_of<T>);
    return static_cast<const T*>(data_);
  }
  const void* address() const { return data_; }
  DType dtype() const { return dtype_; }
  explicit operator bool() const { return data_ != nullptr; }

 private:
  const void* data_ = nullptr;
  DType dtype_ = DType::f32;
};

/// The address and dtype of an array that a kernel writes. null and T mean the same as in ConstArray.
class MutableArray {
 public:
  MutableArray() = default;
  MutableArray(std::nullptr_t) {}  // NOLINT
  template <std::same_as<Tensor> T>
  MutableArray(const T& t) {  // NOLINT: a const Tensor is a const handle to mutable elements
    if (t.defined()) data_ = t.raw_data(), dtype_ = t.dtype();
  }
  template <class T, DType dtype = dtype_of<T>>
  MutableArray(T* data) : data_(data), dtype_(dtype) {}  // NOLINT

  /// Throws TypeError unless T is the type of the dtype.
  template <class T>
  T* as() const {
    detail::check_array_type(data_, dtype_, dtype_of<T>);
    return static_cast<T*>(data_);
  }
  void* address() const { return data_; }
  DType dtype() const { return dtype_; }
  explicit operator bool() const { return data_ != nullptr; }
  operator ConstArray() const = delete;  // kernels call as<T>() instead

 private:
  void* data_ = nullptr;
  DType dtype_ = DType::f32;
};

/// The addresses of N operands: an output and N - 1 inputs.
template <int N>
struct OperandAddresses {
  void* out = nullptr;
  const void* in[N > 1 ? N - 1 : 1] = {};

  /// The address of operand n, where the output is operand 0.
  const void* address(int n) const { return n == 0 ? out : in[n - 1]; }
  /// Moves operand n on by `bytes`.
  void advance(int n, std::int64_t bytes) {
    if (n == 0) out = static_cast<char*>(out) + bytes;
    else in[n - 1] = static_cast<const char*>(in[n - 1]) + bytes;
  }
};

/// The iteration space of an elementwise kernel with N operands. All operands are broadcast to one shape.
/// Index 0 of `strides` and `dtypes` is the output. A broadcast dimension has stride 0. Dimensions are sorted
/// so that the output's smallest stride is last. They are merged where the strides of all operands allow it:
/// if all operands are dense and have the same layout, a single dimension of stride 1 remains. The arrays are
/// uninitialised from index `ndim` on, because clearing them would take longer than the arithmetic of a small
/// operation.
template <int N>
struct Elementwise : OperandAddresses<N> {
  int ndim = 0;  // at least 1
  std::int64_t numel = 0;
  std::int64_t sizes[kMaxDims];
  std::int64_t strides[N][kMaxDims];  // in elements
  DType dtypes[N] = {};

  std::int64_t element_size(int n) const { return static_cast<std::int64_t>(dtype_size(dtypes[n])); }
};

/// Plans N operands over the shape of operand 0. The caller has checked that the others broadcast to it.
template <int N>
Elementwise<N> plan(const Tensor* const (&operands)[N]);
extern template Elementwise<1> plan(const Tensor* const (&)[1]);
extern template Elementwise<2> plan(const Tensor* const (&)[2]);
extern template Elementwise<3> plan(const Tensor* const (&)[3]);
extern template Elementwise<4> plan(const Tensor* const (&)[4]);

}  // namespace tapestry::kernels
