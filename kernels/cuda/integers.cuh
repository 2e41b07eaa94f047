#pragma once
// Arithmetic of integers and bools, for indices, counts and masks: one kernel a dtype, told at run time what
// to do, for these are never what a model waits for. Integers wrap.
#include <limits>

#include "tapestry/kernels/cuda/copy.cuh"
#include "tapestry/kernels/ops/elementwise.h"

namespace tapestry::kernels::cuda {

enum class IntegerOp : int { add, sub, mul, maximum, minimum, pow, abs };

/// f(a, b). The functions of bools are those of the bytes 0 and 1: or is the maximum, and the minimum.
template <class C>
struct IntegerFunction {
  IntegerOp op;

  __device__ C operator()(C a, C b) const {
    switch (op) {
      case IntegerOp::add:
        return static_cast<C>(static_cast<U>(a) + static_cast<U>(b));
      case IntegerOp::sub:
        return static_cast<C>(static_cast<U>(a) - static_cast<U>(b));
      case IntegerOp::mul:
        return product(a, b);
      case IntegerOp::maximum:
        return a > b ? a : b;
      case IntegerOp::minimum:
        return a < b ? a : b;
      case IntegerOp::pow:
        return power(a, b);
      default:  // abs
        if constexpr (std::is_signed_v<C>)
          if (a < 0) return static_cast<C>(U(0) - static_cast<U>(a));
        return a;
    }
  }

 private:
  using U = std::make_unsigned_t<C>;
  __device__ static C product(C a, C b) { return static_cast<C>(static_cast<U>(a) * static_cast<U>(b)); }
  __device__ static C power(C a, C b) {
    if constexpr (std::is_signed_v<C>)
      if (b < 0) return a == 1 ? 1 : a == -1 ? (b % 2 ? -1 : 1) : 0;
    C result = 1;
    for (; b; b = static_cast<C>(b >> 1)) {
      if (b & 1) result = product(result, a);
      a = product(a, a);
    }
    return result;
  }
};
/// min(f(x, s), most), or f(s, x).
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

template <class T>
void launch_integers(const Elementwise<3>& e, IntegerOp op, cudaStream_t stream) {
  map<T, T, T>(e, IntegerFunction<T>{op}, stream);
}
template <class T>
void launch_integers(const Elementwise<2>& e, IntegerOp op, const Scalar& s, bool scalar_first,
                     cudaStream_t stream) {
  map<T, T>(e, IntegerWithScalar<T>{{op}, convert_scalar<T>(s), scalar_first}, stream);
}
template <class T>
void launch_integer_clamp(const Elementwise<2>& e, const std::optional<Scalar>& lo,
                          const std::optional<Scalar>& hi, cudaStream_t stream) {
  using Limits = std::numeric_limits<T>;
  const T least = lo ? convert_scalar<T>(*lo) : Limits::lowest();
  map<T, T>(
      e,
      IntegerWithScalar<T>{{IntegerOp::maximum}, least, false, hi ? convert_scalar<T>(*hi) : Limits::max()},
      stream);
}

}  // namespace tapestry::kernels::cuda
