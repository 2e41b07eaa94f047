#pragma once
// GPU kernels of comparisons and choices. A bool is a byte of 0 or 1. All comparisons of a dtype share one
// kernel, which selects the comparison at run time. Choices copy bits, so there is one kernel per element
// size.
#include <limits>

#include "tapestry/kernels/cuda/copy.cuh"
#include "tapestry/kernels/ops/compare.h"

namespace tapestry::kernels::cuda {

/// The possible orders of two numbers, one bit each.
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
struct IsNanFormula {
  __device__ bool operator()(float x) const { return IsNan::value(x); }
};
struct IsCloseFormula {
  double rtol, atol;
  bool equal_nan;
  template <class C>
  __device__ bool operator()(C x, C y) const {
    return IsClose::value(x, y, rtol, atol, equal_nan);
  }
};
struct WhereFormula {
  template <class C>
  __device__ C operator()(std::uint8_t condition, C a, C b) const {
    return Where::value(condition, a, b);
  }
};
/// In every dtype, zero has all bits 0.
struct MaskedFormula {
  bool keep;
  template <class C>
  __device__ C operator()(std::uint8_t condition, C x) const {
    return Masked::value(condition, x, keep);
  }
};

template <class T, unsigned accepted>
void launch_compare(const LaunchContext& context, const Elementwise<3>& e) {
  map<bool, T, T>(e, Compare{accepted}, stream_of(context));
}
template <class T, unsigned accepted>
void launch_compare_scalar(const LaunchContext& context, const ScalarArgs& a) {
  if constexpr (std::is_integral_v<T>)
    map<bool, T>(a.operands, CompareWith<std::int64_t>{accepted, a.scalar.to_int()}, stream_of(context));
  else
    map<bool, T>(a.operands, CompareWith<float>{accepted, static_cast<float>(a.scalar.to_double())},
                 stream_of(context));
}
template <class T>
void launch_isnan(const LaunchContext& context, const Elementwise<2>& e) {
  map<bool, T>(e, IsNanFormula{}, stream_of(context));
}
template <class T>
void launch_isclose(const LaunchContext& context, const IsCloseArgs& a) {
  map<bool, T, T>(a.operands, IsCloseFormula{a.rtol, a.atol, a.equal_nan}, stream_of(context));
}
template <class T>
void launch_where(const LaunchContext& context, const Elementwise<4>& e) {
  map<Bits<T>, std::uint8_t, Bits<T>, Bits<T>>(e, WhereFormula{}, stream_of(context));
}
template <class T>
void launch_masked(const LaunchContext& context, const MaskedArgs& a) {
  map<Bits<T>, std::uint8_t, Bits<T>>(a.operands, MaskedFormula{a.keep}, stream_of(context));
}

}  // namespace tapestry::kernels::cuda
