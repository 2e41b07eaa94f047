#pragma once
// The reduction Op for sums (reduction.h), which sums, variances and norms are based on.
#include "tapestry/kernels/cpu/reduction.h"

namespace tapestry::kernels::cpu {

template <class T>
using Wide = std::conditional_t<std::is_floating_point_v<T>, double, std::int64_t>;
template <class T>
using SumLane = std::conditional_t<std::is_floating_point_v<Compute<T>>, Compute<T>, std::int64_t>;

/// Adds without overflow errors. Integers wrap around: they are added as unsigned numbers, for which overflow
/// is defined.
template <class C>
inline C plus(C a, C b) {
  if constexpr (std::is_integral_v<C>)
    return static_cast<C>(static_cast<std::make_unsigned_t<C>>(a) + static_cast<std::make_unsigned_t<C>>(b));
  else return a + b;
}

/// The reduction Op for the sum of f(x, center).
template <class L, class F>
struct Sum {
  using Lane = L;
  using Total = Wide<L>;
  F f;
  Lane start() const { return 0; }
  Lane step(Lane lane, Lane x, Lane center) const { return plus(lane, f(x, center)); }
  Lane fold(Lane a, Lane b) const { return plus(a, b); }
  Total begin() const { return 0; }
  Total merge(Total total, Lane lane) const { return plus(total, static_cast<Total>(lane)); }
  Total join(Total a, Total b) const { return plus(a, b); }
};

template <class T, class F, class Finish>
void sum_of(const Reduction& r, const ConstArray& centers, const F& f, const Finish& finish,
            std::int64_t cost = 1) {
  using Lane = SumLane<T>;
  reduce<T>(r, Sum<Lane, F>{f}, centers.as<Lane>(), finish, cost);
}

}  // namespace tapestry::kernels::cpu
