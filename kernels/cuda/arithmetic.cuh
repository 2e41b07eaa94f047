#pragma once
// GPU kernels of the arithmetic of integers and bools. Each dtype has one kernel, which selects the operation
// at run time: integers serve only for indices, counts and masks, so their speed does not matter. Floating
// dtypes have one kernel per operation (pointwise.cuh).
#include "tapestry/kernels/cuda/copy.cuh"
#include "tapestry/kernels/cuda/pointwise.cuh"
#include "tapestry/kernels/ops/functions.h"

namespace tapestry::kernels::cuda {

/// True if integers have the operation. Then the kernels below compute it.
template <class Row>
inline constexpr bool kTakesIntegers = contains(Row::kDTypes, DType::i64);

/// Computes f(a, b). Bools are the bytes 0 and 1: "or" is the maximum and "and" is the minimum.
template <class C>
struct IntegerFunction {
  static constexpr int kAbs = -1;
  int row;  // its position in Arithmetic, or kAbs

  __device__ C operator()(C a, C b) const {
    if (row == kAbs) return Abs::value<Math<>>(a);
    return select(Arithmetic(), a, b);
  }

 private:
  template <class... Rows>
  __device__ C select(RowList<Rows...>, C a, C b) const {
    C y = 0;
    int i = 0;
    (static_cast<void>(i++ == row && compute<Rows>(a, b, y)), ...);
    return y;
  }
  template <class Row>
  __device__ static bool compute(C a, C b, C& y) {
    if constexpr (kTakesIntegers<Row>) y = Row::template value<Math<>>(a, b);
    return true;
  }
};
template <class Row, class C>
IntegerFunction<C> integer_function() {
  if constexpr (std::is_same_v<Row, Abs>) return {IntegerFunction<C>::kAbs};
  else return {position_in<Row>(Arithmetic())};
}

/// Computes min(f(x, s), most), or min(f(s, x), most).
template <class C>
struct IntegerWithScalar {
  IntegerFunction<C> f;
  C s;
  bool scalar_first;
  C most = std::numeric_limits<C>::max();
  __device__ C operator()(C x) const {
    const C y = scalar_first ? f(s, x) : f(x, s);
    return y > most ? most : y;
  }
};

template <class Row, class T>
void launch_integers(const LaunchContext& context, const Elementwise<3>& e) {
  map<T, T, T>(e, integer_function<Row, T>(), stream_of(context));
}
/// Computes f(x, s), or f(s, x) if kNumber, the position of the number, is 0. The number is first converted
/// to the dtype's own type, which is bool for bools.
template <class Row, int kNumber, class T, class Own = T>
void launch_integers_with(const LaunchContext& context, const PointwiseArgs<2, 1>& a) {
  const T s = static_cast<T>(convert_scalar<Own>(a.params[0]));
  map<T, T>(a.operands, IntegerWithScalar<T>{integer_function<Row, T>(), s, kNumber == 0},
            stream_of(context));
}
/// Computes f(x, 0), or f(0, x) if kZero, the position of the zero, is 0.
template <class Row, int kZero, class T>
void launch_integers_with_zero(const LaunchContext& context, const Elementwise<2>& e) {
  map<T, T>(e, IntegerWithScalar<T>{integer_function<Row, T>(), T(0), kZero == 0}, stream_of(context));
}
template <class T>
void launch_integer_clamp(const LaunchContext& context, const ClampArgs& a) {
  using Limits = std::numeric_limits<T>;
  const T low = a.low ? convert_scalar<T>(*a.low) : Limits::lowest(),
          high = a.high ? convert_scalar<T>(*a.high) : Limits::max();
  map<T, T>(a.operands, IntegerWithScalar<T>{integer_function<Maximum, T>(), low, false, high},
            stream_of(context));
}

}  // namespace tapestry::kernels::cuda
