#pragma once
// GPU kernels of arithmetic. Floating dtypes have one kernel per operation. Integers and bools have one
// kernel per dtype, which selects the operation at run time: they serve only for indices, counts and masks,
// so their speed does not matter.
#include "tapestry/kernels/cuda/copy.cuh"
#include "tapestry/kernels/cuda/pointwise.cuh"
#include "tapestry/kernels/ops/functions.h"

namespace tapestry::kernels::cuda {

// ---- floating dtypes: a tensor and a number

/// Computes Row::value(x, s), where s is the same for all elements.
template <class Row, class T>
struct WithScalar {
  float s;
  __device__ float operator()(float x) const { return Row::template value<Math<T>>(x, s); }
};
/// Computes Row::value(s, x).
template <class Row, class T>
struct ScalarWith {
  float s;
  __device__ float operator()(float x) const { return Row::template value<Math<T>>(s, x); }
};
template <class T>
struct PowScalarBackward {
  float s;
  __device__ float operator()(float dy, float x) const { return PowScalar::gradient<Math<T>>(dy, x, s); }
};

/// F is WithScalar<...> or ScalarWith<...>.
template <class T, class F>
void launch_scalar(const LaunchContext& context, const ScalarArgs& a) {
  map<T, T>(a.operands, F{static_cast<float>(a.scalar.to_double())}, stream_of(context));
}
template <class T>
void launch_pow_scalar_backward(const LaunchContext& context, const PowScalarBackwardArgs& a) {
  map<T, T, T>(a.operands, PowScalarBackward<T>{static_cast<float>(a.scalar.to_double())},
               stream_of(context));
}

// ---- integers and bools

enum class IntegerOp : int { add, sub, mul, maximum, minimum, pow, abs };

/// Computes f(a, b). Bools are the bytes 0 and 1: "or" is the maximum and "and" is the minimum.
template <class C>
struct IntegerFunction {
  IntegerOp op;

  __device__ C operator()(C a, C b) const {
    using M = Math<>;
    switch (op) {
      case IntegerOp::add:
        return Add::value<M>(a, b);
      case IntegerOp::sub:
        return Sub::value<M>(a, b);
      case IntegerOp::mul:
        return Mul::value<M>(a, b);
      case IntegerOp::maximum:
        return Maximum::value<M>(a, b);
      case IntegerOp::minimum:
        return Minimum::value<M>(a, b);
      case IntegerOp::pow:
        return Pow::value<M>(a, b);
      default:
        return Abs::value<M>(a);
    }
  }
};
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

template <class T, IntegerOp op>
void launch_integers(const LaunchContext& context, const Elementwise<3>& e) {
  map<T, T, T>(e, IntegerFunction<T>{op}, stream_of(context));
}
/// Computes f(x, s), or f(s, x) with `scalar_first`. The scalar is first converted to `Number`, which is bool
/// for bools.
template <class T, IntegerOp op, bool scalar_first = false, class Number = T>
void launch_integers(const LaunchContext& context, const ScalarArgs& a) {
  const T s = static_cast<T>(convert_scalar<Number>(a.scalar));
  map<T, T>(a.operands, IntegerWithScalar<T>{{op}, s, scalar_first}, stream_of(context));
}
/// Computes f(x, 0), or f(0, x) with `zero_first`.
template <class T, IntegerOp op, bool zero_first = false>
void launch_integers(const LaunchContext& context, const Elementwise<2>& e) {
  map<T, T>(e, IntegerWithScalar<T>{{op}, T(0), zero_first}, stream_of(context));
}
template <class T>
void launch_integer_clamp(const LaunchContext& context, const ClampArgs& a) {
  using Limits = std::numeric_limits<T>;
  const T low = a.low ? convert_scalar<T>(*a.low) : Limits::lowest(),
          high = a.high ? convert_scalar<T>(*a.high) : Limits::max();
  map<T, T>(a.operands, IntegerWithScalar<T>{{IntegerOp::maximum}, low, false, high}, stream_of(context));
}

}  // namespace tapestry::kernels::cuda
