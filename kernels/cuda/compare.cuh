#pragma once
// Comparisons and choices. A bool is a byte of 0 or 1; what only chooses moves bits, one kernel a size.
#include <limits>

#include "tapestry/kernels/cuda/copy.cuh"
#include "tapestry/kernels/ops/elementwise.h"

namespace tapestry::kernels::cuda {

/// How two numbers may be to each other, one bit each.
enum Order : unsigned { kLess = 1, kEqual = 2, kGreater = 4, kUnordered = 8 };

/// Whether a and b are in one of the accepted orders.
struct Compare {
  unsigned accepted;
  template <class C>
  __device__ bool operator()(C a, C b) const {
    const unsigned order = a < b ? kLess : a == b ? kEqual : a > b ? kGreater : kUnordered;
    return (accepted & order) != 0;
  }
};
/// S is float, or i64 for integers.
template <class S>
struct CompareWith {
  unsigned accepted;
  S s;
  template <class C>
  __device__ bool operator()(C x) const {
    return Compare{accepted}(static_cast<S>(x), s);
  }
};
struct IsNan {
  __device__ bool operator()(float x) const { return x != x; }
};
struct IsClose {
  double rtol, atol;
  bool equal_nan;
  template <class C>
  __device__ bool operator()(C x, C y) const {
    if (x == y) return true;
    const auto a = static_cast<double>(x), b = static_cast<double>(y);
    if (equal_nan && a != a && b != b) return true;
    // An infinite b would allow any difference.
    constexpr double most = std::numeric_limits<double>::max();
    const double difference = a > b ? a - b : b - a, allowed = rtol * b;
    return a >= -most && a <= most && b >= -most && b <= most &&
           difference <= atol + (allowed < 0 ? -allowed : allowed);
  }
};
struct Where {
  template <class C>
  __device__ C operator()(std::uint8_t condition, C a, C b) const {
    return condition ? a : b;
  }
};
/// Zero is all bits 0 in every dtype.
struct Masked {
  bool keep;
  template <class C>
  __device__ C operator()(std::uint8_t condition, C x) const {
    return (condition != 0) == keep ? x : C(0);
  }
};

template <class T>
void launch_compare(const Elementwise<3>& e, unsigned accepted, cudaStream_t stream) {
  map<bool, T, T>(e, Compare{accepted}, stream);
}
template <class T>
void launch_compare_scalar(const Elementwise<2>& e, unsigned accepted, const Scalar& s, cudaStream_t stream) {
  if constexpr (std::is_integral_v<T>)
    map<bool, T>(e, CompareWith<std::int64_t>{accepted, s.to_int()}, stream);
  else map<bool, T>(e, CompareWith<float>{accepted, static_cast<float>(s.to_double())}, stream);
}
template <class T>
void launch_isnan(const Elementwise<2>& e, cudaStream_t stream) {
  map<bool, T>(e, IsNan{}, stream);
}
template <class T>
void launch_isclose(const Elementwise<3>& e, double rtol, double atol, bool equal_nan, cudaStream_t stream) {
  map<bool, T, T>(e, IsClose{rtol, atol, equal_nan}, stream);
}
template <class T>
void launch_where(const Elementwise<4>& e, cudaStream_t stream) {
  map<Bits<T>, std::uint8_t, Bits<T>, Bits<T>>(e, Where{}, stream);
}
template <class T>
void launch_masked(const Elementwise<3>& e, bool keep, cudaStream_t stream) {
  map<Bits<T>, std::uint8_t, Bits<T>>(e, Masked{keep}, stream);
}

}  // namespace tapestry::kernels::cuda
