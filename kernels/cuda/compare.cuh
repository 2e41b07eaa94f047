#pragma once
// GPU kernels of comparisons and choices. A bool is a byte of 0 or 1. All comparisons of a dtype share one
// kernel, which selects the comparison at run time. Choices copy bits, so there is one kernel per element
// size.
#include "tapestry/kernels/cuda/copy.cuh"
#include "tapestry/kernels/cuda/pointwise.cuh"
#include "tapestry/kernels/ops/compare.h"

namespace tapestry::kernels::cuda {

/// The possible orders of two numbers, one bit each.
enum Order : unsigned { kLess = 1, kEqual = 2, kGreater = 4, kUnordered = 8 };

/// The orders for which a comparison is true.
template <class Row>
inline constexpr unsigned kAccepted = 0;
template <>
inline constexpr unsigned kAccepted<Eq> = kEqual;
template <>
inline constexpr unsigned kAccepted<Ne> = kLess | kGreater | kUnordered;
template <>
inline constexpr unsigned kAccepted<Lt> = kLess;
template <>
inline constexpr unsigned kAccepted<Le> = kLess | kEqual;
template <>
inline constexpr unsigned kAccepted<Gt> = kGreater;
template <>
inline constexpr unsigned kAccepted<Ge> = kGreater | kEqual;

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

template <class Row, class T>
void launch_compare(const LaunchContext& context, const Elementwise<3>& e) {
  map<bool, T, T>(e, Compare{kAccepted<Row>}, stream_of(context));
}
template <class Row, class T>
void launch_compare_with(const LaunchContext& context, const PointwiseArgs<2, 1>& a) {
  using S = std::conditional_t<std::is_integral_v<T>, std::int64_t, float>;
  map<bool, T>(a.operands, CompareWith<S>{kAccepted<Row>, convert_scalar<S>(a.params[0])},
               stream_of(context));
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
