#pragma once
// What a kernel sees of a tensor: an address, sizes and strides, by value, so that it can go to a GPU as it
// is.
#include "tapestry/core/tensor.h"

namespace tapestry::kernels {

struct View {
  void* data = nullptr;
  DType dtype = DType::f32;
  int ndim = 0;
  std::int64_t sizes[kMaxDims] = {};
  std::int64_t strides[kMaxDims] = {};  // in elements

  View() = default;
  View(const Tensor& t)
      : data(t.raw_data()), dtype(t.dtype()), ndim(t.dim()) {  // NOLINT: tensors go to kernels
    for (int i = 0; i < ndim; ++i) sizes[i] = t.sizes()[i], strides[i] = t.strides()[i];
  }
  std::int64_t numel() const {
    std::int64_t n = 1;
    for (int i = 0; i < ndim; ++i) n *= sizes[i];
    return n;
  }
  template <class T>
  T* as() const {
    return static_cast<T*>(data);
  }
};

/// The iteration space of an elementwise kernel over N operands of one (broadcast) shape; operand 0 is the
/// output. A broadcast dimension has stride 0. Dimensions are ordered so that the last is the output's
/// fastest, and merged where all operands allow it: dense operands of one layout come as a single dimension
/// of stride 1. What lies behind `ndim` dimensions is undefined: to clear it would cost a small operation
/// more than its arithmetic does.
template <int N>
struct Elementwise {
  int ndim = 0;  // at least 1
  std::int64_t numel = 0;
  std::int64_t sizes[kMaxDims];
  std::int64_t strides[N][kMaxDims];  // in elements
  void* data[N] = {};
  DType dtypes[N] = {};
};

/// Plans N operands over the shape of operand 0, to which the others must broadcast (checked by the caller).
template <int N>
Elementwise<N> plan(const Tensor* const (&operands)[N]);
extern template Elementwise<1> plan(const Tensor* const (&)[1]);
extern template Elementwise<2> plan(const Tensor* const (&)[2]);
extern template Elementwise<3> plan(const Tensor* const (&)[3]);
extern template Elementwise<4> plan(const Tensor* const (&)[4]);

}  // namespace tapestry::kernels
