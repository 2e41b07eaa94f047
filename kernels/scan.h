#pragma once
// The operations of the scans in kernels/ops/scan.h, for host and device code. A scan visits the elements of
// a row in order, or in reverse order, and joins their States:
//
// clang-format off
//   struct Op {
//     using State;                                            // trivial, for shared memory
//     static State identity();                                // join(identity(), s) is s
//     State at(std::int64_t element, std::int64_t i) const;   // the State of element i of a row
//     static State join(State before, State after);           // associative
//     void put(std::int64_t element, std::int64_t i, State) const;  // writes the result of element i
//     std::int64_t n;                                         // elements per row
//     bool reverse;
//   };
// clang-format on
//
// `element` is the index in the whole array.
#include <cmath>
#include <limits>

#include "tapestry/core/philox.h"  // TAPESTRY_HOST_DEVICE
#include "tapestry/kernels/ops/scan.h"

namespace tapestry::kernels {

/// Sums, or products if kProduct. They are accumulated in C.
template <class T, class C, bool kProduct>
struct Cumulative {
  using State = C;
  const T* x;
  T* y;
  std::int64_t n;
  bool reverse;

  explicit Cumulative(const ScanArgs& a) : x(a.x.as<T>()), y(a.y.as<T>()), n(a.n), reverse(a.reverse) {}
  TAPESTRY_HOST_DEVICE static State identity() { return kProduct ? C(1) : C(0); }
  TAPESTRY_HOST_DEVICE State at(std::int64_t element, std::int64_t) const {
    return static_cast<C>(x[element]);
  }
  TAPESTRY_HOST_DEVICE static State join(State a, State b) { return kProduct ? a * b : a + b; }
  TAPESTRY_HOST_DEVICE void put(std::int64_t element, std::int64_t, State s) const {
    y[element] = static_cast<T>(s);
  }
};

/// Computes the recurrence s[i] = dy[i] + x[i + 1] * s[i + 1]. A State is the function s -> factor * s +
/// term; joined States are composed functions.
template <class T, class C>
struct CumprodBackward {
  struct State {
    C factor, term;
  };
  const T *x, *y, *dy;
  T* dx;
  std::int64_t n;
  static constexpr bool reverse = true;

  explicit CumprodBackward(const CumprodBackwardArgs& a)
      : x(a.x.as<T>()), y(a.y.as<T>()), dy(a.dy.as<T>()), dx(a.dx.as<T>()), n(a.n) {}
  TAPESTRY_HOST_DEVICE static State identity() { return {C(1), C(0)}; }
  TAPESTRY_HOST_DEVICE State at(std::int64_t element, std::int64_t i) const {
    return {i + 1 < n ? static_cast<C>(x[element + 1]) : C(0), static_cast<C>(dy[element])};
  }
  TAPESTRY_HOST_DEVICE static State join(State a, State b) {
    return {b.factor * a.factor, b.factor * a.term + b.term};
  }
  TAPESTRY_HOST_DEVICE void put(std::int64_t element, std::int64_t i, State s) const {
    dx[element] = static_cast<T>((i > 0 ? static_cast<C>(y[element - 1]) : C(1)) * s.term);
  }
};

/// Logarithms of sums of exponentials. A State is a sum of exponentials, divided by that of the largest.
template <class T, class C>
struct LogCumulative {
  struct State {
    C largest, sum;
  };
  const T* x;
  T* y;
  std::int64_t n;
  static constexpr bool reverse = false;

  explicit LogCumulative(const ScanArgs& a) : x(a.x.as<T>()), y(a.y.as<T>()), n(a.n) {}
  TAPESTRY_HOST_DEVICE static State identity() { return {-std::numeric_limits<C>::infinity(), C(0)}; }
  TAPESTRY_HOST_DEVICE State at(std::int64_t element, std::int64_t) const {
    return {static_cast<C>(x[element]), C(1)};
  }
  /// Equal elements have the factor 1 also if they are infinite. NaN stays in `sum`.
  TAPESTRY_HOST_DEVICE static State join(State a, State b) {
    const C largest = a.largest > b.largest ? a.largest : b.largest;
    return {largest, scaled(a, largest) + scaled(b, largest)};
  }
  TAPESTRY_HOST_DEVICE void put(std::int64_t element, std::int64_t, State s) const {
    y[element] = static_cast<T>(s.largest + log(s.sum));
  }

 private:
  TAPESTRY_HOST_DEVICE static C scaled(State s, C largest) {
    return s.largest == largest ? s.sum : s.sum * exp(s.largest - largest);
  }
};

/// The gradient of LogCumulative, a recurrence as in CumprodBackward.
template <class T, class C>
struct LogCumulativeBackward : CumprodBackward<T, C> {
  using Base = CumprodBackward<T, C>;
  using Base::Base;
  using typename Base::State;
  TAPESTRY_HOST_DEVICE State at(std::int64_t element, std::int64_t i) const {
    return {i + 1 < this->n ? power(this->y[element], this->y[element + 1]) : C(0),
            static_cast<C>(this->dy[element])};
  }
  TAPESTRY_HOST_DEVICE void put(std::int64_t element, std::int64_t, State s) const {
    this->dx[element] = static_cast<T>(power(this->x[element], this->y[element]) * s.term);
  }

 private:
  /// exp(a - b) for a <= b, and 0 if a is -infinity.
  TAPESTRY_HOST_DEVICE static C power(T a, T b) {
    return a == -std::numeric_limits<T>::infinity() ? C(0) : exp(static_cast<C>(a) - static_cast<C>(b));
  }
};

/// The largest or smallest element so far, and its index.
template <class T>
struct CumulativeExtreme {
  struct State {
    T value;
    std::int64_t index;  // negative before the first element
  };
  const T* x;
  T* y;
  std::int64_t* indices;
  std::int64_t n;
  bool largest;
  static constexpr bool reverse = false;

  explicit CumulativeExtreme(const CummaxArgs& a)
      : x(a.x.as<T>()), y(a.y.as<T>()), indices(a.indices.as<std::int64_t>()), n(a.n), largest(a.largest) {}
  TAPESTRY_HOST_DEVICE static State identity() { return {T(0), -1}; }
  TAPESTRY_HOST_DEVICE State at(std::int64_t element, std::int64_t i) const { return {x[element], i}; }
  TAPESTRY_HOST_DEVICE State join(State a, State b) const {
    if (a.index < 0 || b.index < 0) return a.index < 0 ? b : a;
    const bool replaces = largest ? b.value >= a.value : b.value <= a.value;
    return b.value != b.value || replaces ? b : a;  // no number replaces NaN
  }
  TAPESTRY_HOST_DEVICE void put(std::int64_t element, std::int64_t, State s) const {
    y[element] = s.value;
    indices[element] = s.index;
  }
};

/// Sums dy over runs of equal indices, from the end of the row. The index of a run is the position of its
/// first element, which receives the sum. All other elements receive 0.
template <class T, class C>
struct CummaxBackward {
  struct State {
    C sum;
    bool starts;  // a run begins within the joined elements
  };
  const std::int64_t* index;
  const T* dy;
  T* dx;
  std::int64_t n;
  static constexpr bool reverse = true;

  explicit CummaxBackward(const CummaxBackwardArgs& a)
      : index(a.index.as<std::int64_t>()), dy(a.dy.as<T>()), dx(a.dx.as<T>()), n(a.n) {}
  TAPESTRY_HOST_DEVICE static State identity() { return {C(0), false}; }
  TAPESTRY_HOST_DEVICE State at(std::int64_t element, std::int64_t i) const {
    return {static_cast<C>(dy[element]), i + 1 == n || index[element] != index[element + 1]};
  }
  TAPESTRY_HOST_DEVICE static State join(State a, State b) {
    return {b.starts ? b.sum : a.sum + b.sum, a.starts || b.starts};
  }
  TAPESTRY_HOST_DEVICE void put(std::int64_t element, std::int64_t i, State s) const {
    dx[element] = index[element] == i ? static_cast<T>(s.sum) : T(0);
  }
};

}  // namespace tapestry::kernels
