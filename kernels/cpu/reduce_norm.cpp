#include <cmath>
#include <limits>

#include "tapestry/kernels/cpu/reduction_sum.h"
#include "tapestry/kernels/ops/reduce.h"

namespace tapestry::kernels::cpu {
namespace {

// The reduction Op for the largest sign * |x|. With a negative sign, that is the smallest |x|, negated. The result is NaN if an
// element is NaN.
template <class L>
struct Extreme {
  using Lane = L;
  using Total = L;
  L sign;
  Lane start() const { return sign > 0 ? 0 : -std::numeric_limits<L>::infinity(); }
  Lane step(Lane lane, Lane x, Lane) const { return fold(lane, sign * std::abs(x)); }
  Lane fold(Lane a, Lane b) const { return ((b > a) | (b != b)) ? b : a; }
  Total begin() const { return start(); }
  Total merge(Total total, Lane lane) const { return fold(total, lane); }
  Total join(Total a, Total b) const { return fold(a, b); }
};

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
    const Lane sign = p > 0 ? 1 : -1;
    reduce<T>(r, Extreme<Lane>{sign}, nullptr, [out, sign](std::int64_t i, Lane most) { out(i, sign * most); });
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
  norm.set(DeviceType::cpu, dtype_of<T>, &norm_kernel<T>);
  norm_backward.set(DeviceType::cpu, dtype_of<T>, &norm_backward_kernel<Compute<T>>);
});

}  // namespace
}  // namespace tapestry::kernels::cpu
