// CPU kernels for sums, and for reductions that are based on sums: variance, logsumexp, norms.
#include "tapestry/kernels/ops/reduce.h"

#include <cmath>
#include <limits>

#include "tapestry/kernels/cpu/exp.h"
#include "tapestry/kernels/cpu/reduction.h"

namespace tapestry::kernels::cpu {
namespace {

template <class T>
using Wide = std::conditional_t<std::is_floating_point_v<T>, double, std::int64_t>;
template <class T>
using SumLane = std::conditional_t<std::is_floating_point_v<Compute<T>>, Compute<T>, std::int64_t>;

// Adds without overflow errors. Integers wrap around: they are added as unsigned numbers, for which overflow
// is defined.
template <class C>
C plus(C a, C b) {
  if constexpr (std::is_integral_v<C>)
    return static_cast<C>(static_cast<std::make_unsigned_t<C>>(a) + static_cast<std::make_unsigned_t<C>>(b));
  else return a + b;
}

// The reduction Op for the sum of f(x, center).
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

struct Itself {
  template <class X>
  X operator()(X x, X) const {
    return x;
  }
};
// The reduction Op for the sum of the elements.
template <class L>
struct PlainSum : Sum<L, Itself> {
  static constexpr bool kAddsElements = true;
};

// The reduction Op for the largest or the smallest |x|. The result is NaN if an element is NaN.
template <class L, bool largest>
struct Extreme {
  using Lane = L;
  using Total = L;
  Lane start() const { return largest ? 0 : std::numeric_limits<L>::infinity(); }
  Lane step(Lane lane, Lane x, Lane) const { return fold(lane, std::abs(x)); }
  Lane fold(Lane a, Lane b) const { return ((largest ? b > a : b < a) | (b != b)) ? b : a; }
  Total begin() const { return start(); }
  Total merge(Total total, Lane lane) const { return fold(total, lane); }
  Total join(Total a, Total b) const { return fold(a, b); }
};

template <class T, class F, class Finish>
void sum_of(const Reduction& r, const ConstArray& centers, const F& f, const Finish& finish,
            std::int64_t cost = 1) {
  using Lane = SumLane<T>;
  reduce<T>(r, Sum<Lane, F>{f}, centers.as<Lane>(), finish, cost);
}

template <class T>
void sum_kernel(const LaunchContext&, const SumArgs& a) {
  const Reduction& r = a.reduction;
  const PlainSum<SumLane<T>> op;
  if constexpr (std::is_floating_point_v<Compute<T>>) {
    reduce<T>(r, op, nullptr, [out = ReductionWriter<T>(r), divisor = a.divisor](std::int64_t i, double sum) {
      out(i, sum / divisor);
    });
  } else {
    std::int64_t* const out = r.out.as<std::int64_t>();
    reduce<T>(r, op, nullptr, [out](std::int64_t i, std::int64_t sum) { out[i] = sum; });
  }
}

template <class T>
void nansum_kernel(const LaunchContext&, const Reduction& r) {
  using Lane = Compute<T>;
  sum_of<T>(
      r, nullptr, [](Lane x, Lane) { return x == x ? x : Lane(0); },
      [out = ReductionWriter<T>(r)](std::int64_t i, double sum) { out(i, sum); });
}

// The lanes are as wide as the total: a product of 32 elements may exceed the range of f32, although the
// whole product does not.
template <class T>
struct Product {
  using Lane = Wide<T>;
  using Total = Lane;
  Lane start() const { return 1; }
  Lane step(Lane lane, Lane x, Lane) const { return fold(lane, x); }
  Lane fold(Lane a, Lane b) const {
    if constexpr (std::is_integral_v<Lane>)
      return static_cast<Lane>(static_cast<std::uint64_t>(a) * static_cast<std::uint64_t>(b));
    else return a * b;
  }
  Total begin() const { return 1; }
  Total merge(Total total, Lane lane) const { return fold(total, lane); }
  Total join(Total a, Total b) const { return fold(a, b); }
};
template <class T>
void prod_kernel(const LaunchContext&, const Reduction& r) {
  reduce<T>(r, Product<Compute<T>>(), nullptr,
            [out = ReductionWriter<T>(r)](std::int64_t i, auto product) { out(i, product); });
}

template <class T>
void variance_kernel(const LaunchContext&, const VarianceArgs& a) {
  const Reduction& r = a.reduction;
  const auto f = [](auto x, auto center) { return (x - center) * (x - center); };
  sum_of<T>(r, a.mean, f, [out = ReductionWriter<T>(r), divisor = a.divisor](std::int64_t i, double sum) {
    out(i, sum / divisor);
  });
}

template <class T>
void logsumexp_kernel(const LaunchContext&, const LogsumexpArgs& a) {
  const Reduction& r = a.reduction;
  using Lane = Compute<T>;
  // Shifting by an infinite maximum would give NaN.
  const auto shift = [](Lane m) { return std::isinf(m) ? Lane(0) : m; };
  const auto f = [shift](Lane x, Lane m) { return fast_exp(x - shift(m)); };
  sum_of<T>(
      r, a.max, f,
      [out = ReductionWriter<T>(r), shift, max = a.max.as<Lane>()](std::int64_t i, double sum) {
        out(i, std::log(sum) + shift(max[i]));
      },
      4);
}

template <class T>
void norm_kernel(const LaunchContext&, const NormArgs& a) {
  const Reduction& r = a.reduction;
  const double p = a.p;
  using Lane = Compute<T>;
  const ReductionWriter<T> out(r);
  const auto plain = [out](std::int64_t i, double sum) { out(i, sum); };
  if (p == 0) {
    sum_of<T>(
        r, nullptr, [](Lane x, Lane) { return x != 0 ? Lane(1) : Lane(0); }, plain);
  } else if (p == 1) {
    sum_of<T>(
        r, nullptr, [](Lane x, Lane) { return std::abs(x); }, plain);
  } else if (p == 2) {
    sum_of<T>(
        r, nullptr, [](Lane x, Lane) { return x * x; },
        [out](std::int64_t i, double sum) { out(i, std::sqrt(sum)); });
  } else if (std::isinf(p)) {
    if (p > 0) reduce<T>(r, Extreme<Lane, true>(), nullptr, plain);
    else reduce<T>(r, Extreme<Lane, false>(), nullptr, plain);
  } else {
    sum_of<T>(
        r, nullptr, [q = static_cast<Lane>(p)](Lane x, Lane) { return std::pow(std::abs(x), q); },
        [out, p](std::int64_t i, double sum) { out(i, std::pow(sum, 1 / p)); }, 16);
  }
}

template <class C>
void norm_backward_kernel(const LaunchContext&, const NormBackwardArgs& a) {
  const Elementwise<4>& e = a.operands;
  const double p = a.p;
  const auto sign = [](C x) { return x > 0 ? C(1) : x < 0 ? C(-1) : x; };  // keeps NaN
  if (p == 0) {
    map<C, C, C, C>(e, [](C, C, C) { return C(0); });
  } else if (p == 1) {
    map<C, C, C, C>(e, [sign](C x, C, C g) { return g * sign(x); });
  } else if (p == 2) {
    map<C, C, C, C>(e, [](C x, C norm, C g) { return norm == 0 ? C(0) : g * (x / norm); });
  } else if (std::isinf(p)) {
    map<C, C, C, C>(e, [sign](C x, C norm, C g) {
      return std::abs(x) == norm || (std::isnan(x) && std::isnan(norm)) ? g * sign(x) : C(0);
    });
  } else {
    const C q = static_cast<C>(p - 1);
    map<C, C, C, C>(e, [sign, q](C x, C norm, C g) {
      if (norm == 0 || (x == 0 && q < 0)) return C(0);
      return g * sign(x) * std::pow(std::abs(x) / norm, q);
    });
  }
}

const bool filled = for_types<float, double, Half, BFloat16>([]<class T> {
                      sum.set(DeviceType::cpu, dtype_of<T>, &sum_kernel<T>);
                      nansum.set(DeviceType::cpu, dtype_of<T>, &nansum_kernel<T>);
                      variance.set(DeviceType::cpu, dtype_of<T>, &variance_kernel<T>);
                      logsumexp.set(DeviceType::cpu, dtype_of<T>, &logsumexp_kernel<T>);
                      norm.set(DeviceType::cpu, dtype_of<T>, &norm_kernel<T>);
                      norm_backward.set(DeviceType::cpu, dtype_of<T>, &norm_backward_kernel<Compute<T>>);
                    }) &&
                    for_types<std::int64_t, std::int32_t, std::uint8_t, bool>(
                        []<class T> { sum.set(DeviceType::cpu, dtype_of<T>, &sum_kernel<T>); }) &&
                    for_types<float, double, std::int64_t>(
                        []<class T> { prod.set(DeviceType::cpu, dtype_of<T>, &prod_kernel<T>); });

}  // namespace
}  // namespace tapestry::kernels::cpu
